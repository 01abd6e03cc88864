/* A whole loss on a CPU: the sums over the pixels, the formula of `tail.py`, and the gradient of the logits.
   native.py compiles and calls it. C alone: nothing of torch, Python or the mathematical library. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t batch, classes, count; /* logits [batch, classes, count], labels [batch, count], or masks as the logits */
    int64_t piece;                 /* pixels of a piece; the last of an image may have fewer */
    int64_t pieces;                /* of an image */
    int64_t ignore;
    int32_t has_ignore, target_type, sigmoid, entropy, regions, exact;
} Pass;

enum { BYTES = 5, TRUTHS, FLOATS }; /* types of masks; those before are labels */

/* Sums over pixels: of y(1 - p) and (1 - y)p, from which those of yp and p follow without loss where a prediction is
   nearly right, and not the other way round; and slopes, among which those two are. */
enum { MISSED, WRONG, PREDICTION_SQ, ERROR, ENTROPY, TARGET, TARGET_SQ, PIXELS, SUMS };
enum { OVERLAP, PREDICTION, SLOPES = ENTROPY + 1 };

static const double LARGEST = 0x1p120; /* as eager.LARGEST */
static const double TINY = 0x1p-126;   /* as geometry.TINY */
static const float TOLERANCE = 1e-3f;  /* as eager.TOLERANCE, which is a little less: this itself is beyond */

typedef struct { int64_t from, to; } Span; /* among the pixels of all images */

static inline Span span_of(const Pass *pass, int64_t piece) {
    const int64_t image = piece / pass->pieces, within = piece % pass->pieces * pass->piece;
    const int64_t end = within + pass->piece < pass->count ? within + pass->piece : pass->count;
    return (Span){image * pass->count + within, image * pass->count + end};
}

/* Pixels of a line, so that its logits stay in the nearest cache: but loops of few pixels are mostly overhead. */
static inline int64_t line_of(int64_t classes) {
    const int64_t fitting = 3072 / classes / 64 * 64;
    return fitting < 64 ? 64 : fitting > 512 ? 512 : fitting;
}

/* How many classes are annotated in an image, and which: 0 if all are. */
static inline int64_t known_of(const uint8_t *annotated, int64_t image, int64_t classes, const uint8_t **known) {
    int64_t count = 0;
    if (annotated)
        for (int64_t c = 0; c < classes; c++) count += annotated[image * classes + c] != 0;
    *known = annotated && count < classes ? annotated + image * classes : 0;
    return annotated ? count : classes;
}

static inline int64_t whole_of(int64_t pixels) { return (pixels + 63) / 64 * 64; }

static inline double bounded(double slope) {
    return slope < -LARGEST ? -LARGEST : slope > LARGEST ? LARGEST : slope;
}

static const double OF_FACTORIAL[] = {
    1., 1., 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800,
    1. / 39916800, 1. / 479001600, 1. / 6227020800,
};

#define ROWS 11       /* of a line, beside those of each class */
#define FAR 0x1p-60f /* where the background's power, of a pixel that is background, has lost too many digits */
#define SPECIAL static inline __attribute__((always_inline)) /* compiled anew for each argument that is a constant */
#define PRAGMA(words) _Pragma(#words)
#define VECTORS PRAGMA(omp simd)
#define VECTORS_OF_SUMS(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))

#define REAL float
#define INT int32_t
#define BITS uint32_t
#define NAME(name) name##_float
#define MANTISSA 23
#define EXPONENT_OF_1 127
#define HALF_ROOT 0x3f3504f3u /* the bits of sqrt(1/2) */
#define ROUNDING 0x1.8p23f    /* added and taken away, it rounds to whole numbers */
#define LOG_2_HIGH 0x1.62ep-1f
#define LOG_2_LOW 0x1.0bfbe8p-15f
#define LEAST -87.3f
#define TERMS 7
#define ODD_TERMS 5
#include "native_pixels.h"
#undef REAL
#undef INT
#undef BITS
#undef NAME
#undef MANTISSA
#undef EXPONENT_OF_1
#undef HALF_ROOT
#undef ROUNDING
#undef LOG_2_HIGH
#undef LOG_2_LOW
#undef LEAST
#undef TERMS
#undef ODD_TERMS
#define REAL double
#define INT int64_t
#define BITS uint64_t
#define NAME(name) name##_double
#define MANTISSA 52
#define EXPONENT_OF_1 1023
#define HALF_ROOT 0x3fe6a09e667f3bcdu
#define ROUNDING 0x1.8p52
#define LOG_2_HIGH 0x1.62e42feep-1
#define LOG_2_LOW 0x1.a39ef35793c76p-33
#define LEAST -708.
#define TERMS 13
#define ODD_TERMS 11
#include "native_pixels.h"

int polydice_forward(
    const Pass *pass, const float *logits, const void *target, const uint8_t *annotated, int64_t first, int64_t last,
    double *parts
) {
    return (pass->exact ? forward_double : forward_float)(pass, logits, target, annotated, first, last, parts);
}

int polydice_backward(
    const Pass *pass, const float *logits, const void *target, const uint8_t *annotated, const double *slopes,
    const float *grad, int64_t first, int64_t last, float *gradient
) {
    return (pass->exact ? backward_double : backward_float)(
        pass, logits, target, annotated, slopes, *grad, first, last, gradient
    );
}

/* The formula: a weighted sum of losses, as tail.py describes its terms. */

enum { POLYNOMIAL, RATIO, REGION, PIXELWISE };

typedef struct {
    int32_t kind, background, skip, added; /* `added`: its row there, -1 for none */
    int32_t first, last;                   /* of its coefficients */
    double factor, numbers[4];
} Term;

typedef struct {
    int32_t terms, mean, over_batch, each_added;
    const Term *term;
    const double *coefficients;
} Formula;

typedef struct { double loss, of_overlap, of_p, of_p_sq, of_error, of_entropy; } Value;

static inline double inverse(double number) { return fabs(number) < TINY ? 0 : 1 / number; }

static inline double root(double square) { return square < TINY ? 0 : sqrt(square); }

/* theta^2 of x = 1 - cos theta, and its slope: of u = 1 - cos(theta / 2), 4 arccos^2(1 - u) = 8 u (1 + u/6 (1 + ...)). */
static double squared_angle(double x, double *slope) {
    const double half_cosine = sqrt(1 - x / 2), u = x / (2 * (1 + half_cosine));
    double sum = 1, sum_u = 0;
    for (int k = 20; k > 0; k--) {
        const double share = (double)(k * k) / ((k + 1) * (2 * k + 1));
        sum_u = share * (sum + u * sum_u);
        sum = 1 + share * u * sum;
    }
    *slope = 2 * (sum + u * sum_u) / half_cosine;
    return 8 * u * sum;
}

/* PolyDice; the names are those of geometry.py. */
static Value polynomial(const Term *term, const double *coefficients, double added, double a, double b, double e) {
    const double smooth = term->numbers[0], root_a = root(a), root_b = root(b), of_root = inverse(root_b);
    const double r = root_a * root_b, d = (a - b) * inverse(root_a + root_b), gap = d * d, gap_b = -d * of_root;
    const double whole = inverse(a + b + smooth), lost = gap * whole, lost_b = (gap_b - lost) * whole;
    const double x_e = r == 0 ? 0 : inverse(2 * r + smooth), twice = e - gap;
    const double held = twice < 0 ? 0 : twice > 2 * r ? 2 * r : twice, x = (r < e * 1e-4 ? held : twice) * x_e;
    const double x_b = -(gap_b + x * root_a * of_root) * x_e;
    double t_x, q = 0, q_t = 0;
    const double t = squared_angle(x, &t_x);
    for (int k = term->last - 1; k >= term->first; k--) {
        const double coefficient = coefficients[k] + (k == term->first ? added : 0);
        q_t = q_t * t + q + coefficient;
        q = (q + coefficient) * t;
    }
    const double slope = (1 - lost) * q_t * t_x, of_lost = term->numbers[1] != 0 ? 1 : 1 - q;
    return (Value){
        .loss = lost + (1 - lost) * q, .of_p_sq = lost_b * of_lost + slope * x_b, .of_error = slope * x_e,
    };
}

static Value ratio(const Term *term, double a, double b, double e) {
    const double of_e = inverse(a + b + term->numbers[0]), loss = e * of_e;
    return (Value){.loss = loss, .of_p_sq = -loss * of_e, .of_error = of_e};
}

/* Tversky. */
static Value region(const Term *term, const double *sums) {
    const double alpha = term->numbers[0], beta = term->numbers[1], off = alpha * sums[WRONG] + beta * sums[MISSED];
    const double of_whole = inverse(sums[TARGET] - sums[MISSED] + off + term->numbers[2]), loss = off * of_whole;
    return (Value){
        .loss = loss, .of_overlap = (-(alpha + beta) - loss * (1 - alpha - beta)) * of_whole,
        .of_p = alpha * (1 - loss) * of_whole,
    };
}

static Value pixelwise(const Term *term, const double *sums, int sigmoid) {
    const double epsilon = term->numbers[0];
    return (Value){
        .loss = sums[ENTROPY] + epsilon * (sums[MISSED] + (sigmoid ? sums[WRONG] : 0)), .of_entropy = 1,
        .of_overlap = -epsilon * (sigmoid ? 2 : 1), .of_p = sigmoid ? epsilon : 0,
    };
}

/* Whether a class counts, of an image or, over the batch, of any. */
static int is_known(const Pass *pass, const uint8_t *annotated, int64_t rows, int64_t n) {
    if (!annotated) return 1;
    for (int64_t place = n; place < pass->batch * pass->classes; place += pass->classes) {
        if (annotated[place]) return 1;
        if (rows > 1 || pass->batch == 1) return 0;
    }
    return 0;
}

/* What a class counts in a term, and what it adds to the number that a mean divides by. */
static double weight_of(const Term *term, const double *weights, const double *sums, int64_t c) {
    if (c < !term->background || (term->skip && sums[TARGET] < TINY)) return 0;
    return weights ? weights[c] : 1;
}

static double count_of(const Pass *pass, const Term *term, double weight, const double *sums, int64_t c) {
    if (term->kind != PIXELWISE) return weight;
    if (pass->sigmoid) return c < !term->background ? 0 : sums[PIXELS];
    return pass->target_type < BYTES ? weight * sums[TARGET] : c == 0 ? sums[PIXELS] : 0; /* as torch has it */
}

/* parts [batch * pieces, C, SUMS], which it adds up in place -> the loss and its slopes [batch, C, SLOPES]. */
void polydice_formula(
    const Pass *pass, const Formula *formula, double *parts, const uint8_t *annotated, const double *weights,
    const double *added, double *slopes, float *loss
) {
    const int64_t classes = pass->classes, rows = formula->over_batch ? 1 : pass->batch;
    const double *sums = parts;
    double total = 0;
    memset(slopes, 0, pass->batch * classes * SLOPES * sizeof(double));
    for (int64_t piece = 0; piece < pass->batch * pass->pieces; piece++) {
        const int64_t row = formula->over_batch ? 0 : piece / pass->pieces, whole = pass->batch * pass->pieces / rows;
        for (int64_t n = 0; n < classes * SUMS; n++) {
            const double part = parts[piece * classes * SUMS + n];
            parts[row * classes * SUMS + n] = piece % whole ? parts[row * classes * SUMS + n] + part : part;
        }
    }
    for (int32_t place = 0; place < formula->terms; place++) {
        const Term *term = formula->term + place;
        const double *own_weights = weights ? weights + place * classes : 0;
        double share = term->factor, count = 0;
        for (int64_t n = 0; n < rows * classes; n++) {
            const double *here = sums + n * SUMS, weight = weight_of(term, own_weights, here, n % classes);
            if (!is_known(pass, annotated, rows, n)) continue;
            count += count_of(pass, term, weight, here, n % classes);
        }
        if (formula->mean) share *= inverse(count);
        for (int64_t n = 0; n < rows * classes; n++) {
            const double *here = sums + n * SUMS, weight = weight_of(term, own_weights, here, n % classes);
            if (weight == 0 || !is_known(pass, annotated, rows, n)) continue;
            const double a = here[TARGET_SQ], b = here[PREDICTION_SQ], e = here[ERROR];
            double more = 0;
            if (term->added >= 0) more = added[formula->each_added ? term->added * classes + n % classes : term->added];
            const Value value = term->kind == POLYNOMIAL ? polynomial(term, formula->coefficients, more, a, b, e)
                                : term->kind == RATIO    ? ratio(term, a, b, e)
                                : term->kind == REGION   ? region(term, here)
                                                         : pixelwise(term, here, pass->sigmoid);
            double *slope = slopes + n * SLOPES;
            total += share * weight * value.loss;
            slope[OVERLAP] += share * weight * value.of_overlap;
            slope[PREDICTION] += share * weight * value.of_p;
            slope[PREDICTION_SQ] += share * weight * value.of_p_sq;
            slope[ERROR] += share * weight * value.of_error;
            slope[ENTROPY] += share * weight * value.of_entropy;
        }
    }
    for (int64_t image = rows; image < pass->batch; image++)
        memcpy(slopes + image * classes * SLOPES, slopes, classes * SLOPES * sizeof(double));
    *loss = (float)total;
}

/* Forward and the formula, for one thread. */
int polydice_loss(
    const Pass *pass, const Formula *formula, const float *logits, const void *target, const uint8_t *annotated,
    const double *weights, const double *added, double *slopes, float *loss
) {
    const int64_t pieces = pass->batch * pass->pieces;
    double *parts = malloc(pieces * pass->classes * SUMS * sizeof(double));
    if (!parts) return -1;
    const int status = polydice_forward(pass, logits, target, annotated, 0, pieces, parts);
    if (!status) polydice_formula(pass, formula, parts, annotated, weights, added, slopes, loss);
    free(parts);
    return status;
}

/* Tries all of it on some lines of three classes, in float32 and in float64: with labels, pixels that are ignored and, in
   the second image, a class that is not annotated, and with masks. What was compiled may not run on this processor, or not
   be what was meant. Returns 0 if it does and is. */
int polydice_try(void) {
    enum { IMAGES = 2, CLASSES = 3, COUNT = 1100, LOGITS = IMAGES * CLASSES * COUNT };
    const uint8_t annotated[] = {1, 1, 1, 1, 0, 1};
    const float grad = 1;
    const Term terms[] = {
        {.kind = RATIO, .background = 1, .added = -1, .factor = 1},
        {.kind = REGION, .background = 1, .added = -1, .factor = 1, .numbers = {0.5, 0.5, 0, 1}},
        {.kind = PIXELWISE, .background = 1, .added = -1, .factor = 1},
        {.kind = POLYNOMIAL, .background = 1, .added = -1, .factor = 1, .numbers = {1}, .last = 1},
    };
    const double half = 0.5;
    const Formula formula = {.terms = 4, .mean = 1, .term = terms, .coefficients = &half};
    static float logits[LOGITS], gradient[2][LOGITS];
    static uint8_t labels[IMAGES * COUNT];
    static float masks[LOGITS];
    int wrong = 0;
    for (int n = 0; n < LOGITS; n++) logits[n] = (float)(n * 7919 % 1009) / 100 - 5, masks[n] = (float)(n % 4) / 3;
    for (int n = 0; n < IMAGES * COUNT; n++) labels[n] = n % 5 == 4 ? 255 : n < COUNT ? n % 3 : n % 2 * 2;
    for (int kind = 0; kind < 4; kind++) {
        const int sigmoid = kind % 2, of_masks = kind / 2;
        const void *target = of_masks ? (const void *)masks : labels;
        const uint8_t *known = of_masks ? 0 : annotated;
        double slopes[IMAGES * CLASSES * SLOPES], sum = 0;
        float loss[2];
        for (int exact = 0; exact < 2; exact++) {
            const Pass pass = {
                IMAGES, CLASSES, COUNT, COUNT, 1, 255, .has_ignore = !of_masks, .target_type = of_masks ? FLOATS : 0,
                .sigmoid = sigmoid, .entropy = 1, .regions = 1, .exact = exact,
            };
            wrong |= polydice_loss(&pass, &formula, logits, target, known, 0, 0, slopes, loss + exact);
            wrong |= polydice_backward(&pass, logits, target, known, slopes, &grad, 0, IMAGES, gradient[exact]);
        }
        wrong |= !(fabs(loss[0] - loss[1]) < 1e-5) || !(loss[1] > 1 && loss[1] < 10);
        for (int n = 0; n < LOGITS; n++) {
            wrong |= !(fabs(gradient[0][n] - gradient[1][n]) < 1e-7);
            sum += fabs(gradient[1][n]);
        }
        wrong |= !(sum > 0.1 && sum < 10);
    }
    return wrong;
}
