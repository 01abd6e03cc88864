// A whole loss as a node of torch's autograd: what `NativeLoss` and `FusedLoss` are in Python, without Python.
//
// Backward runs on a thread of torch's own for a GPU, whose core has nothing of Python at hand. `node.py` describes a
// plan once, as a capsule; a call allocates, computes and links the node. What is rare is handed back to Python.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

const void* memory(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

struct Inputs {
  Tensor logits, target, mask, annotated;  // the latter two may be absent

  std::array<const Tensor*, 4> each() const { return {&logits, &target, &mask, &annotated}; }

  std::array<const void*, 4> memories() const {
    return {memory(logits), memory(target), memory(mask), memory(annotated)};
  }

  // Where they are and how they lie there: a copy may come to lie where its original was, in another order.
  std::vector<int64_t> places() const {
    std::vector<int64_t> found;
    for (const Tensor* tensor : each()) {
      found.push_back(reinterpret_cast<int64_t>(memory(*tensor)));
      if (tensor->defined()) found.insert(found.end(), tensor->strides().begin(), tensor->strides().end());
    }
    return found;
  }
};

struct WithPython {
  const PyGILState_STATE state = PyGILState_Ensure();
  ~WithPython() { PyGILState_Release(state); }
};

struct WithoutPython {
  PyThreadState* const state = PyEval_SaveThread();
  ~WithoutPython() { PyEval_RestoreThread(state); }
};

// Of Python's, given back on whatever thread the last node ends.
struct Object {
  PyObject* const object;

  explicit Object(PyObject* given) : object(Py_NewRef(given)) {}
  Object(const Object&) = delete;
  ~Object() {
    if (!Py_IsInitialized()) return;
    const WithPython python;
    Py_DECREF(object);
  }
};

struct Plan {
  Object by_torch;      // makes the gradient where tensors came back as others than were kept, or somebody looks on
  int64_t numbers;      // to work in, and to keep for backward
  at::ScalarType type;  // of these

  Plan(PyObject* by_torch, int64_t numbers, at::ScalarType type) : by_torch(by_torch), numbers(numbers), type(type) {}
  virtual ~Plan() = default;
  // Both are false where Python must do it.
  virtual bool forward(const Inputs&, const Tensor& weights, const Tensor& added, void* stream, const Tensor& space,
                       const Tensor& loss) const = 0;
  virtual bool backward(const Inputs&, const Tensor& space, void* stream, const Tensor& grad,
                        const Tensor& result) const = 0;
};

// On a CPU, one thread: the functions of native.c.
struct Native : Plan {
  using Loss = int (*)(const void*, const void*, const void*, const void*, const void*, const void*, const void*,
                       void*, void*);
  using Backward = int (*)(const void*, const void*, const void*, const void*, const void*, const void*, int64_t,
                           int64_t, void*);
  Loss loss_of;
  Backward gradient_of;
  const void *over, *formula;  // kept by
  Object structures;
  int64_t pieces;

  Native(PyObject* by_torch, PyObject* structures, int64_t numbers)
      : Plan(by_torch, numbers, at::kDouble), structures(structures) {}
  bool forward(const Inputs& in, const Tensor& weights, const Tensor& added, void*, const Tensor& space,
               const Tensor& loss) const override {
    return loss_of(over, formula, memory(in.logits), memory(in.target), memory(in.annotated), memory(weights),
                   memory(added), space.data_ptr(), loss.data_ptr()) == 0;
  }
  bool backward(const Inputs& in, const Tensor& space, void*, const Tensor& grad, const Tensor& result) const override {
    return gradient_of(over, memory(in.logits), memory(in.target), memory(in.annotated), memory(space), memory(grad),
                       0, pieces, result.data_ptr()) == 0;
  }
};

// What CUDA's driver takes to launch a kernel, as cuda.h has it.
struct alignas(8) Attribute {
  unsigned id;
  char padding[4];
  union {
    int number;
    char room[64];
  };
};
struct Configuration {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};
constexpr unsigned LAUNCHED_AHEAD = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int NO_CONTEXT = 201;         // CUDA_ERROR_INVALID_CONTEXT
constexpr size_t MOST_ARGUMENTS = 64;

struct Driver {
  int (*start)(const Configuration*, void* function, void** arguments, void** extra);
  int (*enter)(void* context);
  void* context;  // of the tensors' device

  void launch(const Configuration& how, void* function, void** arguments) const {
    int status = start(&how, function, arguments, nullptr);
    // A thread of autograd's may not have asked CUDA's runtime for anything yet, which is what enters a context.
    if (status == NO_CONTEXT && enter(context) == 0) status = start(&how, function, arguments, nullptr);
    TORCH_CHECK(status == 0, "CUDA could not launch a kernel of polydice: error ", status);
  }
};

struct Kernel {
  void* function;
  unsigned grid[3], threads, shared;
  bool ahead;
  size_t tensors;                 // its first arguments; then come
  std::vector<uint64_t> numbers;  // these, each in the lowest bytes of its own eight

  void launch(const Driver& driver, void* stream, std::array<const void*, 7> tensor) const {
    uint64_t values[MOST_ARGUMENTS];
    void* arguments[MOST_ARGUMENTS];
    for (size_t n = 0; n < tensors; ++n) values[n] = reinterpret_cast<uint64_t>(tensor[n]);
    std::copy(numbers.begin(), numbers.end(), values + tensors);
    for (size_t n = 0; n < tensors + numbers.size(); ++n) arguments[n] = values + n;
    Attribute attribute{LAUNCHED_AHEAD, {}, {1}};
    const Configuration how{
        {grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared, stream, &attribute, ahead ? 1u : 0u};
    driver.launch(how, function, arguments);
  }
};

// On a GPU: the launches of fused.py, compiled for pointers that are multiples of 16.
struct Launches : Plan {
  Driver driver;
  std::vector<Kernel> kernels;  // forward, perhaps gather, tail, backward

  using Plan::Plan;
  static bool aligned(std::initializer_list<const void*> pointers) {
    uintptr_t bits = 0;
    for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
    return bits % 16 == 0;
  }
  bool forward(const Inputs& in, const Tensor& weights, const Tensor& added, void* stream, const Tensor& space,
               const Tensor& loss) const override {
    const auto [logits, target, mask, annotated] = in.memories();
    const void *room = memory(space), *value = memory(loss);
    if (!aligned({logits, target, mask, annotated, memory(weights), memory(added), room, value}) ||
        (weights.defined() && (weights.device() != in.logits.device() || weights.scalar_type() != at::kDouble)))
      return false;
    const void* each = weights.defined() ? memory(weights) : room;
    const void* more = added.defined() ? memory(added) : room;
    const size_t last = kernels.size() - 2;
    kernels[0].launch(driver, stream, {logits, target, mask ? mask : logits, room, annotated});
    if (last > 1) kernels[1].launch(driver, stream, {room});
    kernels[last].launch(driver, stream, {room, each, more, value, annotated});
    return true;
  }
  bool backward(const Inputs& in, const Tensor& space, void* stream, const Tensor& grad,
                const Tensor& result) const override {
    const auto [logits, target, mask, annotated] = in.memories();
    const Tensor own = aligned({memory(grad)}) ? grad : grad.clone();  // else it is one of a stack's
    const void *room = memory(space), *scale = memory(own), *out = memory(result);
    kernels.back().launch(driver, stream, {room, scale, logits, target, mask ? mask : logits, out, annotated});
    return true;
  }
};

PyObject* wrapped(const Tensor& tensor) {
  if (!tensor.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(tensor);
}

Tensor unwrapped(PyObject* object) { return object == Py_None ? Tensor() : THPVariable_Unpack(object); }

struct LossBackward : torch::autograd::Node {
  std::shared_ptr<const Plan> plan;
  SavedVariable logits, target, mask, annotated;
  Tensor space;
  std::vector<int64_t> places;
  void* stream;  // autograd runs a node on the stream of its forward

  std::string name() const override { return "PolydiceLossBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* each : {&logits, &target, &mask, &annotated}) each->reset_data();
    space = Tensor();
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    // create_graph=True: a second derivative would silently be 0
    TORCH_CHECK(!at::GradMode::is_enabled(), "polydice's losses can be differentiated once, not twice");
    const Tensor& grad = grads[0];
    if (!grad.defined()) return {Tensor()};
    const Inputs in{logits.unpack(), target.unpack(), mask.unpack(), annotated.unpack()};
    const bool watched = c10::impl::TorchDispatchModeTLS::stack_len() > 0 || grad._fw_grad(0).defined() ||
                         grad.key_set().has(c10::DispatchKey::Python);
    const bool usual = !grad.is_neg() && !grad._is_zerotensor() && grad.scalar_type() == at::kFloat &&
                       grad.device() == in.logits.device();
    if (!watched && usual && in.places() == places) {
      const c10::DeviceGuard guard(in.logits.device());
      Tensor result = at::empty_like(in.logits);
      if (plan->backward(in, space, stream, grad, result)) return {result};
    }
    return {by_torch(in, grad)};
  }

  Tensor by_torch(const Inputs& in, const Tensor& grad) const {
    const WithPython python;
    std::vector<THPObjectPtr> each;
    for (const Tensor& tensor : {grad, in.logits, in.target, in.mask, in.annotated, space})
      each.emplace_back(wrapped(tensor));
    THPObjectPtr found(PyObject_CallFunctionObjArgs(plan->by_torch.object, each[0].get(), each[1].get(), each[2].get(),
                                                          each[3].get(), each[4].get(), each[5].get(), nullptr));
    if (!found) {
      python_error error;
      error.persist();
      throw std::move(error);
    }
    return THPVariable_Unpack(found.get());
  }
};

// torch has held its nodes by a shared pointer, and since 2.13 by one of its own.
template <class Pointer, class Made>
auto made() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) return std::make_shared<Made>();
  else return c10::make_intrusive<Made>();
}

constexpr char PLAN[] = "polydice.plan";

std::shared_ptr<const Plan>* plan_in(PyObject* capsule) {
  return static_cast<std::shared_ptr<const Plan>*>(PyCapsule_GetPointer(capsule, PLAN));
}

PyObject* capsule_of(std::shared_ptr<const Plan> plan) {
  return PyCapsule_New(new std::shared_ptr<const Plan>(std::move(plan)), PLAN,
                       [](PyObject* capsule) { delete plan_in(capsule); });
}

template <class Address>
void put(Address& place, unsigned long long number) {
  place = reinterpret_cast<Address>(number);
}

// (by_torch, what keeps pass and formula, numbers, addresses of polydice_loss, polydice_backward, pass, formula, pieces)
PyObject* native(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  PyObject *by_torch, *structures;
  unsigned long long loss, backward, over, formula;
  long long numbers, pieces;
  if (!PyArg_ParseTuple(given, "OOLKKKKL", &by_torch, &structures, &numbers, &loss, &backward, &over, &formula, &pieces))
    return nullptr;
  const auto plan = std::make_shared<Native>(by_torch, structures, numbers);
  put(plan->loss_of, loss), put(plan->gradient_of, backward), put(plan->over, over), put(plan->formula, formula);
  plan->pieces = pieces;
  return capsule_of(plan);
  END_HANDLE_TH_ERRORS
}

// (by_torch, numbers, addresses of cuLaunchKernelEx and cuCtxSetCurrent, the context,
//  kernels as (function, grid, threads, shared, ahead, tensors, numbers))
PyObject* launches(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  PyObject *by_torch, *kernels, *values;
  unsigned long long start, enter, context, function;
  long long numbers;
  if (!PyArg_ParseTuple(given, "OL(KKK)O!", &by_torch, &numbers, &start, &enter, &context, &PyTuple_Type, &kernels))
    return nullptr;
  const auto plan = std::make_shared<Launches>(by_torch, numbers, at::kFloat);
  put(plan->driver.start, start), put(plan->driver.enter, enter), put(plan->driver.context, context);
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(kernels); ++n) {
    Kernel kernel{};
    Py_ssize_t tensors;
    int ahead;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kernels, n), "K(III)IIpnO!", &function, kernel.grid, kernel.grid + 1,
                          kernel.grid + 2, &kernel.threads, &kernel.shared, &ahead, &tensors, &PyTuple_Type, &values))
      return nullptr;
    put(kernel.function, function);
    kernel.ahead = ahead != 0, kernel.tensors = tensors;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(values); ++place)
      kernel.numbers.push_back(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(values, place)));
    if (PyErr_Occurred()) return nullptr;
    TORCH_CHECK(kernel.tensors + kernel.numbers.size() <= MOST_ARGUMENTS, "too many arguments");
    plan->kernels.push_back(std::move(kernel));
  }
  return capsule_of(plan);
  END_HANDLE_TH_ERRORS
}

// loss(plan, stream, logits, target, mask, weights, added, annotated) -> the loss, or None where Python must make it
PyObject* loss(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<const Plan>& plan = *plan_in(given[0]);
  void* stream = PyLong_AsVoidPtr(given[1]);
  const Inputs in{unwrapped(given[2]), unwrapped(given[3]), unwrapped(given[4]), unwrapped(given[7])};
  const Tensor weights = unwrapped(given[5]), added = unwrapped(given[6]);
  if (in.logits._fw_grad(0).defined()) Py_RETURN_NONE;  // differentiated forwards
  for (const Tensor* each : in.each())
    if (each->defined() && !each->has_storage()) Py_RETURN_NONE;  // has escaped from torch.func
  Tensor value;
  {
    const WithoutPython others_may_run;
    at::RecordFunction profiled(at::RecordScope::FUNCTION);
    if (profiled.isActive()) profiled.before("PolydiceLoss");
    const c10::DeviceGuard guard(in.logits.device());
    const at::TensorOptions options = at::TensorOptions().device(in.logits.device());
    value = at::empty({}, options.dtype(at::kFloat));
    Tensor space = at::empty({plan->numbers}, options.dtype(plan->type));
    if (!plan->forward(in, weights, added, stream, space, value)) value = Tensor();
    else if (at::GradMode::is_enabled() && in.logits.requires_grad()) {
      const auto node = made<decltype(torch::autograd::Edge::function), LossBackward>();
      node->plan = plan, node->space = std::move(space), node->places = in.places(), node->stream = stream;
      node->logits = SavedVariable(in.logits, false), node->target = SavedVariable(in.target, false);
      if (in.mask.defined()) node->mask = SavedVariable(in.mask, false);
      if (in.annotated.defined()) node->annotated = SavedVariable(in.annotated, false);
      node->set_next_edges(torch::autograd::collect_next_edges(in.logits));
      torch::autograd::set_history(value, node);
    }
  }
  return wrapped(value);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {{"native", native, METH_VARARGS, nullptr},
                         {"launches", launches, METH_VARARGS, nullptr},
                         {"loss", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(loss)), METH_FASTCALL,
                          nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled_node", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_compiled_node() { return PyModule_Create(&module); }
