/* The pass over the pixels, [C, N] an image. native.c includes this once for each type REAL in which pixels are computed;
   NAME(x) is x of that type.

   Some hundred pixels, a line, are read class by class. Every loop goes over the pixels of a line and nothing in it
   depends on the pixel before, so compilers make vectors of it. What is left at the end of an image is filled up to whole
   vectors, with pixels that do not count: they are rounded as all others. Sums over a line are REAL, over lines double. */

/* e^x of x <= 0, to some units of the last digit, and 0 below LEAST: x = k log 2 + r, |r| <= log 2 / 2. */
static inline REAL NAME(exponential)(REAL x) {
    const REAL shifted = x * (REAL)1.44269504088896340736 + ROUNDING, k = shifted - ROUNDING;
    const REAL r = x - k * LOG_2_HIGH - k * LOG_2_LOW;
    REAL sum = 0;
    for (int n = TERMS; n >= 0; n--) sum = sum * r + (REAL)OF_FACTORIAL[n];
    union { REAL real; BITS bits; } scale = {shifted};
    scale.bits = (scale.bits + EXPONENT_OF_1) << MANTISSA;
    return x < LEAST ? 0 : sum * scale.real;
}

/* log x of a normal x > 0: x = 2^k m, 1/2 <= m^2 < 2, and log m = 2 (s + s^3/3 + s^5/5 + ...) of s = (m - 1) / (m + 1). */
static inline REAL NAME(logarithm)(REAL x) {
    union { REAL real; BITS bits; } m = {x};
    const INT k = (INT)(m.bits - HALF_ROOT) >> MANTISSA;
    m.bits -= (BITS)k << MANTISSA;
    const REAL s = (m.real - 1) / (m.real + 1), square = s * s;
    REAL sum = 0;
    for (int n = ODD_TERMS; n > 0; n--) sum = sum * square + (REAL)1 / (2 * n - 1);
    return x < INFINITY ? (REAL)k * (REAL)0.693147180559945309417 + 2 * s * sum : x;
}

/* e^(x - most), also where both are -infinity. */
static inline REAL NAME(of_group)(REAL x, REAL most) {
    return NAME(exponential)(x == most ? 0 : x - most);
}

/* That of the loss in the sums of a class, as a gradient takes it: twice that of a square. */
typedef struct { REAL overlap, p, p_sq, error, entropy; } NAME(Slope);

/* Room for the line that is visited. */
typedef struct {
    int64_t pixels;       /* of a whole line */
    const float *x;       /* its logits: of class c from x + c * stride on */
    int64_t stride;
    int hidden;           /* whether there are pixels that are not labelled */
    float *copy;          /* [C, pixels]: of the logits, with 0 in such pixels */
    float *made;          /* [C, pixels]: the gradient of a line that is filled up */
    REAL *power;          /* [C, pixels]: e^(x - most), in backward then the probabilities */
    REAL *h;              /* [C, pixels]: the gradient of the probabilities */
    REAL *most;           /* the largest logit */
    REAL *inverse;        /* 1 / (sum of the powers), 0 where nothing is labelled */
    REAL *surprise;       /* log (sum of the powers); where the truth is a merged background, -log of its probability */
    REAL *inner, *pull;   /* sums over the classes that a gradient needs */
    REAL *merged;         /* the background's power, with that of the classes that are not annotated */
    REAL *share;          /* of one of them in it */
    int far;              /* whether it is FAR somewhere where it is the truth: then also */
    REAL *of_group, *most_of_group; /* the same power, of the group's own largest logit, and that */
    REAL *shown;          /* 1, or 0 where nothing is labelled */
    REAL *y;              /* the masks of a class */
    const void *masks;    /* those of the line, of class 0 and, with the stride of an image, the others */
    int beyond;           /* whether one was beyond 0 and 1 */
    int64_t labelled;     /* how many pixels of the line have masks; the others fill it up */
    NAME(Slope) *slope;   /* [C] */
    INT *label;           /* -1 where nothing is labelled */
    const uint8_t *known; /* [C]: the classes that are annotated in this image; 0: all of them */
} NAME(Line);

static void *NAME(make_line)(NAME(Line) *line, int64_t classes) {
    const int64_t pixels = line_of(classes), reals = classes * (2 * pixels + SLOPES) + ROWS * pixels;
    REAL *room = malloc(reals * sizeof(REAL) + 2 * classes * pixels * sizeof(float) + pixels * sizeof(INT));
    if (!room) return 0;
    line->pixels = pixels;
    line->beyond = 0;
    line->power = room;
    line->h = line->power + classes * pixels;
    REAL **each[ROWS] = {
        &line->most,   &line->inverse, &line->surprise, &line->inner,         &line->pull,
        &line->merged, &line->share,   &line->of_group, &line->most_of_group, &line->shown, &line->y,
    };
    for (int n = 0; n < ROWS; n++) *each[n] = line->h + (classes + n) * pixels;
    line->slope = (NAME(Slope) *)(line->y + pixels);
    line->label = (INT *)(line->slope + classes);
    line->copy = (float *)(line->label + pixels);
    line->made = line->copy + classes * pixels;
    return room;
}

/* Labels of one type, which are compared as WIDE: int64_t where they may be that large. */
#define READ(TYPE, WIDE)                                                                                                 \
    {                                                                                                                    \
        const TYPE *restrict given = (const TYPE *)target + from;                                                        \
        const WIDE most = (WIDE)limit, ignored = (WIDE)pass->ignore;                                                     \
        if (pass->has_ignore && ignored == pass->ignore) {                                                               \
            for (int64_t n = 0; n < count; n++) {                                                                        \
                const WIDE own = given[n];                                                                               \
                const int hide = own == ignored;                                                                         \
                bad |= (1 - hide) & ((own < 0) | (own >= most));                                                         \
                hidden |= hide;                                                                                          \
                label[n] = hide ? -1 : (INT)own;                                                                         \
            }                                                                                                            \
        } else {                                                                                                         \
            WIDE low = 0, high = 0;                                                                                      \
            for (int64_t n = 0; n < count; n++) {                                                                        \
                const WIDE own = given[n];                                                                               \
                low = own < low ? own : low;                                                                             \
                high = own > high ? own : high;                                                                          \
                label[n] = (INT)own;                                                                                     \
            }                                                                                                            \
            bad = low < 0 || high >= most;                                                                               \
        }                                                                                                                \
        break;                                                                                                           \
    }

/* Reads `count` pixels from `from` on, counted over all images, and fills them up to `whole`. Returns whether a label is
   none, or of a class that is not annotated. */
static inline int NAME(read)(
    const Pass *pass, NAME(Line) *line, const float *logits, const void *target, int64_t from, int64_t count,
    int64_t whole
) {
    const int64_t image = from / pass->count, classes = pass->classes, limit = classes > 1 ? classes : 2;
    const int64_t start = image * classes * pass->count + from % pass->count;
    INT *restrict label = line->label;
    int bad = 0, hidden = 0;
    switch (pass->target_type) {
        case 0: READ(uint8_t, int32_t)
        case 1: READ(int8_t, int32_t)
        case 2: READ(int16_t, int32_t)
        case 3: READ(int32_t, int32_t)
        case 4: READ(int64_t, int64_t)
        default:
            line->masks = (const char *)target + start * (pass->target_type == FLOATS ? sizeof(float) : 1);
            memset(label, 0, count * sizeof(INT));
    }
    line->labelled = count;
    if (line->known)
        for (INT c = 0; c < classes; c++) {
            const INT own = classes == 1 ? 1 : c;
            if (!line->known[c])
                for (int64_t n = 0; n < count; n++) bad |= label[n] == own;
        }
    line->x = logits + start;
    line->stride = pass->count;
    hidden |= count < whole;
    for (int64_t n = count; n < whole; n++) label[n] = -1;
    line->hidden = hidden;
    if (hidden || pass->sigmoid)
        for (int64_t n = 0; n < whole; n++) line->shown[n] = label[n] >= 0;
    if (hidden) { /* whatever is there, NaN too, has no part in anything */
        for (int64_t c = 0; c < classes; c++) {
            for (int64_t n = 0; n < count; n++)
                line->copy[c * whole + n] = label[n] < 0 ? 0 : line->x[c * line->stride + n];
            for (int64_t n = count; n < whole; n++) line->copy[c * whole + n] = 0;
        }
        line->x = line->copy;
        line->stride = whole;
    }
    return bad;
}

/* The masks of a class in a line. Notes whether one is beyond 0 and 1. */
static inline const REAL *NAME(masks_of)(const Pass *pass, NAME(Line) *line, INT c, int64_t whole) {
    const uint8_t *restrict bytes = (const uint8_t *)line->masks + c * pass->count;
    const float *restrict reals = (const float *)line->masks + c * pass->count;
    REAL *restrict y = line->y;
    int beyond = 0;
    if (pass->target_type == TRUTHS)
        for (int64_t n = 0; n < line->labelled; n++) y[n] = bytes[n] != 0;
    else if (pass->target_type == BYTES)
        for (int64_t n = 0; n < line->labelled; n++) y[n] = bytes[n], beyond |= bytes[n] > 1;
    else
        for (int64_t n = 0; n < line->labelled; n++)
            y[n] = reals[n], beyond |= (reals[n] <= -TOLERANCE) | (reals[n] >= 1 + TOLERANCE);
    for (int64_t n = line->labelled; n < whole; n++) y[n] = 0;
    line->beyond |= beyond;
    return y;
}

/* The target of class c: in what follows `of_masks` is known when it is compiled. */
#define TARGET_OF(c)                                                                                                     \
    const INT *restrict label = line->label;                                                                             \
    const INT own = pass->sigmoid && pass->classes == 1 ? 1 : c; /* label 1 is the foreground of a single channel */     \
    const REAL *restrict mask = of_masks ? NAME(masks_of)(pass, line, c, count) : 0
#define Y(n) (of_masks ? mask[n] : (REAL)(label[n] == own))

/* Merges the classes that are not annotated into the background. */
static inline void NAME(merge)(const Pass *pass, NAME(Line) *line, int64_t count) {
    REAL *restrict merged = line->merged;
    const INT *restrict label = line->label;
    int far = 0;
    for (int64_t n = 0; n < count; n++) merged[n] = line->power[n];
    for (int64_t c = 1; c < pass->classes; c++)
        if (!line->known[c]) {
            const REAL *restrict power = line->power + c * count;
            for (int64_t n = 0; n < count; n++) merged[n] += power[n];
        }
    if (pass->entropy)
        for (int64_t n = 0; n < count; n++) far |= label[n] == 0 && merged[n] < FAR;
    line->far = far;
    if (!far) return;
    REAL *most = line->most_of_group, *total = line->of_group;
    for (int64_t n = 0; n < count; n++) most[n] = line->x[n], total[n] = 0;
    for (int64_t c = 1; c < pass->classes; c++)
        for (int64_t n = 0; n < count && !line->known[c]; n++) {
            const REAL x = line->x[c * line->stride + n];
            most[n] = x > most[n] ? x : most[n];
        }
    for (int64_t c = 0; c < pass->classes; c++)
        for (int64_t n = 0; n < count && (c == 0 || !line->known[c]); n++)
            total[n] += NAME(of_group)(line->x[c * line->stride + n], most[n]);
}

static inline void NAME(surprise)(NAME(Line) *line, int64_t count) {
    const REAL *restrict total = line->inverse, *restrict merged = line->merged;
    const INT *restrict label = line->label;
    REAL *restrict surprise = line->surprise;
    if (line->known) {
        VECTORS
        for (int64_t n = 0; n < count; n++)
            surprise[n] = NAME(logarithm)(label[n] == 0 ? total[n] / merged[n] : total[n]);
    } else {
        VECTORS
        for (int64_t n = 0; n < count; n++) surprise[n] = NAME(logarithm)(total[n]);
    }
    for (int64_t n = 0; n < count && line->known && line->far; n++)
        if (label[n] == 0)
            surprise[n] = (line->most[n] - line->most_of_group[n]) + NAME(logarithm)(total[n]) -
                          NAME(logarithm)(line->of_group[n]);
}

static inline void NAME(softmax)(const Pass *pass, NAME(Line) *line, int64_t count) {
    REAL *most = line->most, *total = line->inverse;
    for (int64_t n = 0; n < count; n++) most[n] = line->x[n], total[n] = 0;
    for (int64_t c = 1; c < pass->classes; c++) {
        const float *x = line->x + c * line->stride;
        VECTORS
        for (int64_t n = 0; n < count; n++) most[n] = x[n] > most[n] ? (REAL)x[n] : most[n];
    }
    for (int64_t c = 0; c < pass->classes; c++) {
        const float *x = line->x + c * line->stride;
        REAL *power = line->power + c * count;
        VECTORS
        for (int64_t n = 0; n < count; n++) {
            power[n] = NAME(exponential)(x[n] - most[n]);
            total[n] += power[n];
        }
    }
    if (line->known) NAME(merge)(pass, line, count);
    if (pass->entropy) NAME(surprise)(line, count);
    VECTORS
    for (int64_t n = 0; n < count; n++) total[n] = 1 / total[n];
    if (line->hidden)
        for (int64_t n = 0; n < count; n++) total[n] *= line->shown[n];
}

SPECIAL void NAME(add_softmax)(
    const Pass *pass, NAME(Line) *line, int64_t count, double *sums, const int of_masks
) {
    const REAL *restrict most = line->most, *restrict inverse = line->inverse, *restrict surprise = line->surprise;
    REAL strange = 0; /* NaN if a pixel is, of whichever class */
    if (pass->entropy) {
        VECTORS_OF_SUMS(strange)
        for (int64_t n = 0; n < count; n++) strange += surprise[n] != surprise[n] ? surprise[n] : 0;
    }
    for (INT c = 0; c < pass->classes; c++, sums += SUMS) {
        if (line->known && !line->known[c]) continue;
        const int of_all = line->known && c == 0;
        const float *restrict x = line->x + c * line->stride;
        const REAL *restrict power = of_all ? line->merged : line->power + c * count;
        TARGET_OF(c);
        REAL missed = 0, wrong = 0, of_p_sq = 0, of_y = 0, of_y_sq = 0, error = 0, entropy = 0;
        VECTORS_OF_SUMS(of_p_sq, of_y, of_y_sq, error)
        for (int64_t n = 0; n < count; n++) {
            const REAL p = power[n] * inverse[n], y = Y(n), d = y - p;
            of_p_sq += p * p;
            of_y += y;
            if (of_masks) of_y_sq += y * y;
            error += d * d;
        }
        if (pass->regions) {
            VECTORS_OF_SUMS(missed, wrong)
            for (int64_t n = 0; n < count; n++) {
                const REAL p = power[n] * inverse[n], y = Y(n);
                missed += y * (1 - p);
                wrong += p - y * p;
            }
        }
        if (pass->entropy && of_all) {
            VECTORS_OF_SUMS(entropy)
            for (int64_t n = 0; n < count; n++) entropy += Y(n) != 0 ? surprise[n] : 0;
        } else if (pass->entropy) {
            VECTORS_OF_SUMS(entropy)
            for (int64_t n = 0; n < count; n++) entropy += Y(n) != 0 ? Y(n) * ((most[n] - x[n]) + surprise[n]) : 0;
        }
        sums[MISSED] += missed, sums[WRONG] += wrong, sums[PREDICTION_SQ] += of_p_sq, sums[PIXELS] += line->labelled;
        sums[TARGET] += of_y, sums[TARGET_SQ] += of_masks ? of_y_sq : of_y, sums[ERROR] += error, sums[ENTROPY] += entropy + strange;
    }
}

/* p - y, to the last digit also where both are nearly 1. q: 1 - p. */
static inline REAL NAME(apart)(REAL y, REAL p, REAL q) { return y > (REAL)0.5 ? (1 - y) - q : p - y; }

SPECIAL void NAME(add_sigmoid)(
    const Pass *pass, NAME(Line) *line, int64_t count, double *sums, const int of_masks
) {
    const REAL *restrict shown = line->shown;
    REAL *restrict powers = line->power;
    for (INT c = 0; c < pass->classes; c++, sums += SUMS) {
        if (line->known && !line->known[c]) continue;
        const float *restrict x = line->x + c * line->stride;
        TARGET_OF(c);
        REAL missed = 0, wrong = 0, of_p_sq = 0, of_y = 0, of_y_sq = 0, error = 0, entropy = 0, pixels = 0;
        VECTORS_OF_SUMS(missed, wrong, of_p_sq, of_y, of_y_sq, error, pixels)
        for (int64_t n = 0; n < count; n++) {
            const REAL z = x[n], power = NAME(exponential)(z < 0 ? z : -z), inverse = 1 / (1 + power);
            const REAL p = (z < 0 ? power * inverse : inverse) * shown[n], q = z < 0 ? inverse : power * inverse;
            const REAL y = Y(n), d = NAME(apart)(y, p, q);
            missed += y * q;
            wrong += (1 - y) * p;
            of_p_sq += p * p;
            of_y += y;
            if (of_masks) of_y_sq += y * y;
            error += d * d;
            pixels += shown[n];
            powers[n] = power;
        }
        if (pass->entropy) { /* log(1 + power), whose digits 1 + power has lost where power is small */
            VECTORS_OF_SUMS(entropy)
            for (int64_t n = 0; n < count; n++) {
                const REAL z = x[n], y = Y(n), power = powers[n], lost = (power - ((1 + power) - 1)) / (1 + power);
                const REAL share = z > 0 ? 1 - y : y, above = share == 0 ? 0 : share * (z > 0 ? z : -z);
                entropy += shown[n] * (above + (NAME(logarithm)(1 + power) + lost));
            }
        }
        sums[MISSED] += missed, sums[WRONG] += wrong, sums[PREDICTION_SQ] += of_p_sq, sums[PIXELS] += pixels;
        sums[TARGET] += of_y, sums[TARGET_SQ] += of_masks ? of_y_sq : of_y, sums[ERROR] += error, sums[ENTROPY] += entropy;
    }
}

/* The gradient of the logits: h is that of the probabilities. */
SPECIAL void NAME(slopes_of_softmax)(
    const Pass *pass, NAME(Line) *line, int64_t count, float *out, int64_t stride, const int of_masks
) {
    REAL *restrict inner = line->inner, *restrict pull = line->pull;
    const REAL *restrict inverse = line->inverse;
    const INT *restrict label = line->label;
    for (int64_t n = 0; n < count; n++) inner[n] = pull[n] = 0;
    for (INT c = 0; c < pass->classes; c++) {
        const NAME(Slope) slope = line->slope[c];
        const int member = line->known && (c == 0 || !line->known[c]);
        REAL *restrict power = line->power + c * count, *restrict h = line->h + c * count;
        if (member) {
            for (int64_t n = 0; n < count; n++) power[n] *= inverse[n];
            if (c > 0) continue;
            power = line->merged;
        }
        TARGET_OF(c);
        VECTORS
        for (int64_t n = 0; n < count; n++) {
            const REAL p = power[n] *= inverse[n], y = Y(n);
            h[n] = slope.error * (p - y) + slope.p_sq * p + slope.p + slope.overlap * y;
            inner[n] += h[n] * p;
        }
        if (pass->entropy) {
            VECTORS
            for (int64_t n = 0; n < count; n++) pull[n] += Y(n) * slope.entropy;
        }
    }
    for (INT c = 0; c < pass->classes; c++) {
        const int member = line->known && (c == 0 || !line->known[c]);
        const REAL entropy = line->slope[member ? 0 : c].entropy;
        const REAL *restrict p = line->power + c * count, *restrict h = line->h + (member ? 0 : c) * count;
        float *restrict to = out + c * stride;
        if (!pass->entropy) {
            VECTORS
            for (int64_t n = 0; n < count; n++) to[n] = (float)(p[n] * (h[n] - inner[n]));
        } else if (!member) {
            TARGET_OF(c);
            VECTORS
            for (int64_t n = 0; n < count; n++)
                to[n] = (float)(p[n] * (h[n] - inner[n]) + (p[n] * pull[n] - Y(n) * entropy));
        } else {
            const float *restrict x = line->x + c * line->stride;
            const REAL *restrict merged = line->merged;
            REAL *restrict share = line->share;
            VECTORS
            for (int64_t n = 0; n < count; n++) share[n] = p[n] / merged[n];
            for (int64_t n = 0; n < count && line->far; n++)
                share[n] = NAME(of_group)(x[n], line->most_of_group[n]) / line->of_group[n];
            VECTORS
            for (int64_t n = 0; n < count; n++)
                to[n] = (float)(p[n] * (h[n] - inner[n]) + (p[n] * pull[n] - (label[n] == 0 ? entropy * share[n] : 0)));
        }
    }
}

SPECIAL void NAME(slopes_of_sigmoid)(
    const Pass *pass, NAME(Line) *line, int64_t count, float *out, int64_t stride, const int of_masks
) {
    const REAL *restrict shown = line->shown;
    for (INT c = 0; c < pass->classes; c++) {
        const NAME(Slope) slope = line->slope[c];
        const float *restrict x = line->x + c * line->stride;
        float *restrict to = out + c * stride;
        if (line->known && !line->known[c]) {
            memset(to, 0, count * sizeof(float));
            continue;
        }
        TARGET_OF(c);
        VECTORS
        for (int64_t n = 0; n < count; n++) {
            const REAL z = x[n], power = NAME(exponential)(z < 0 ? z : -z), inverse = 1 / (1 + power);
            const REAL p = z < 0 ? power * inverse : inverse, q = z < 0 ? inverse : power * inverse;
            const REAL y = Y(n), d = NAME(apart)(y, p, q);
            const REAL h = slope.error * d + slope.p_sq * p + slope.p + slope.overlap * y;
            to[n] = (float)(shown[n] * (h * p * q + slope.entropy * d));
        }
    }
}

/* Both go over pieces of images, from `first` to `last`. Sums of each: [C, SUMS] of `parts`. `annotated`: [B, C], or 0.
   Returned is 0; 1 for what is wrong with a target, or annotated without the background; -1 without memory. */
static int NAME(forward)(
    const Pass *pass, const float *logits, const void *target, const uint8_t *annotated, int64_t first, int64_t last,
    double *parts
) {
    const int of_masks = pass->target_type >= BYTES;
    NAME(Line) line;
    void *room = NAME(make_line)(&line, pass->classes);
    int bad = 0;
    if (!room) return -1;
    memset(parts + first * pass->classes * SUMS, 0, (last - first) * pass->classes * SUMS * sizeof(double));
    for (int64_t piece = first; piece < last && !bad; piece++) {
        const Span span = span_of(pass, piece);
        const int64_t image = span.from / pass->count, known = known_of(annotated, image, pass->classes, &line.known);
        if (!known) continue;
        if (!pass->sigmoid && line.known && !line.known[0]) bad = 1;
        for (int64_t from = span.from; from < span.to && !bad; from += line.pixels) {
            const int64_t count = span.to - from < line.pixels ? span.to - from : line.pixels;
            const int64_t whole = whole_of(count);
            double *sums = parts + piece * pass->classes * SUMS;
            bad |= NAME(read)(pass, &line, logits, target, from, count, whole);
            if (pass->sigmoid) {
                of_masks ? NAME(add_sigmoid)(pass, &line, whole, sums, 1) : NAME(add_sigmoid)(pass, &line, whole, sums, 0);
            } else {
                NAME(softmax)(pass, &line, whole);
                of_masks ? NAME(add_softmax)(pass, &line, whole, sums, 1) : NAME(add_softmax)(pass, &line, whole, sums, 0);
            }
            bad |= line.beyond;
        }
    }
    free(room);
    return bad;
}

static int NAME(backward)(
    const Pass *pass, const float *logits, const void *target, const uint8_t *annotated, const double *slopes,
    double grad, int64_t first, int64_t last, float *gradient
) {
    const int64_t classes = pass->classes;
    const int of_masks = pass->target_type >= BYTES;
    NAME(Line) line;
    void *room = NAME(make_line)(&line, classes);
    if (!room) return -1;
    for (int64_t piece = first; piece < last; piece++) {
        const Span span = span_of(pass, piece);
        const int64_t image = span.from / pass->count;
        for (int64_t c = 0; c < classes; c++) {
            REAL own[SLOPES];
            for (int n = 0; n < SLOPES; n++) own[n] = (REAL)bounded(grad * slopes[(image * classes + c) * SLOPES + n]);
            line.slope[c] = (NAME(Slope)){
                own[OVERLAP], own[PREDICTION], 2 * own[PREDICTION_SQ], 2 * own[ERROR], own[ENTROPY],
            };
        }
        const int64_t known = known_of(annotated, image, classes, &line.known);
        for (int64_t from = span.from; from < span.to; from += line.pixels) {
            const int64_t count = span.to - from < line.pixels ? span.to - from : line.pixels;
            float *out = gradient + image * classes * pass->count + from % pass->count;
            if (!known) {
                for (int64_t c = 0; c < classes; c++) memset(out + c * pass->count, 0, count * sizeof(float));
                continue;
            }
            const int64_t whole = whole_of(count), stride = count < whole ? whole : pass->count;
            float *to = count < whole ? line.made : out;
            NAME(read)(pass, &line, logits, target, from, count, whole);
            if (pass->sigmoid) {
                of_masks ? NAME(slopes_of_sigmoid)(pass, &line, whole, to, stride, 1)
                         : NAME(slopes_of_sigmoid)(pass, &line, whole, to, stride, 0);
            } else {
                NAME(softmax)(pass, &line, whole);
                of_masks ? NAME(slopes_of_softmax)(pass, &line, whole, to, stride, 1)
                         : NAME(slopes_of_softmax)(pass, &line, whole, to, stride, 0);
            }
            for (int64_t c = 0; c < classes && count < whole; c++)
                memcpy(out + c * pass->count, to + c * stride, count * sizeof(float));
        }
    }
    free(room);
    return 0;
}

#undef READ
#undef TARGET_OF
#undef Y
