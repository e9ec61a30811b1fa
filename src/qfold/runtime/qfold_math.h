/* Elementary functions, rounding, minimum and maximum, and float-to-integer conversion for generated code.
 *
 * The same source serves every target: float and 32-bit integer arithmetic only (no double, no libm, no table),
 * and no branch, so that a loop around a call vectorises. The results are the same bits on every machine when
 * compiled with -ffp-contract=off; contraction to FMA changes last bits and keeps the error bounds.
 *
 * What it takes: IEEE binary32 arithmetic, round to nearest even, subnormals. Where the FPU flushes subnormals to
 * zero, the bounds hold for normal arguments and results.
 *
 * Error bounds, in units in the last place, are in ulp.py beside this file and in docs/numerics.md.
 * Coefficients come from scripts/fit_polynomials.py.
 */
#ifndef QFOLD_MATH_H
#define QFOLD_MATH_H

#include <float.h>
#include <stdint.h>

#if defined(__FAST_MATH__)
#error "qfold_math.h relies on IEEE arithmetic: compile without -ffast-math"
#endif
#if FLT_EVAL_METHOD != 0
#error "qfold_math.h relies on float expressions being evaluated in float (FLT_EVAL_METHOD 0)"
#endif

/* ---- bits ---------------------------------------------------------------------------------------------- */

typedef union {
    float f;
    uint32_t u;
} qf_bits_t;

static inline uint32_t qf_bits(float x) {
    qf_bits_t b;
    b.f = x;
    return b.u;
}

static inline float qf_from_bits(uint32_t u) {
    qf_bits_t b;
    b.u = u;
    return b.f;
}

#define QF_INF qf_from_bits(0x7F800000u)
#define QF_NAN qf_from_bits(0x7FC00000u)
#define QF_SIGN 0x80000000u

static inline float qf_absf(float x) { return qf_from_bits(qf_bits(x) & ~QF_SIGN); }

static inline float qf_copysignf(float magnitude, float sign) {
    return qf_from_bits((qf_bits(magnitude) & ~QF_SIGN) | (qf_bits(sign) & QF_SIGN));
}

/* c ? a : b for c 0 or 1, by masks: given a conditional, compilers may move the arithmetic behind `a` or `b` into a
 * branch, and then no loop around it vectorises. */
static inline float qf_select(int c, float a, float b) {
    uint32_t mask = 0u - (uint32_t)c;
    return qf_from_bits((qf_bits(a) & mask) | (qf_bits(b) & ~mask));
}

/* The 12 leading bits of x: products of two such are exact. */
static inline float qf_head(float x) { return qf_from_bits(qf_bits(x) & 0xFFFFF000u); }

/* 2^n for -126 <= n <= 127; `biased` is n + 127. */
static inline float qf_pow2(uint32_t biased) { return qf_from_bits(biased << 23); }

/* a * b + c, for sums of products: one rounding where that is an instruction of these cores, else two. The bounds of contractions
 * hold for both. */
static inline float qf_madd(float a, float b, float c) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Whether 2^-31 <= |x| < 2^33. */
static inline int qf_in_middle(float x) { return (qf_bits(x) << 1) - 0x60000000u < 0x40000000u; }

/* a / b, the same bits, for a b that a loop does not change: with y = 1 / b, divided once, q = a y is right to 2 ulp, a - q b is
 * exact by FMA, and adding its quotient rounds as a division does (Markstein, IBM J. R&D 34, 1990). Where a step of that could
 * underflow, overflow or meet a NaN, and on machines without FMA, it divides. */
static inline float qf_div_by(float a, float b) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    float y = 1.0f / b;
    if (qf_in_middle(a) && qf_in_middle(b)) {
        float q = a * y;
        return __builtin_fmaf(__builtin_fmaf(-q, b, a), y, q);
    }
#endif
    return a / b;
}

/* ---- instructions -------------------------------------------------------------------------------------- */

/* Which a compiler would not find, or not for all of their arguments. */
#if defined(__riscv_f) || defined(__riscv_zfinx)
#if defined(__riscv_zfinx)
#define QF_IN_FLOAT "r"
#else
#define QF_IN_FLOAT "f"
#endif

/* fmax.s, fmin.s: -0 is less than +0, a NaN is ignored beside a number. */
static inline float qf_larger(float a, float b) {
    float r;
    __asm__("fmax.s %0, %1, %2" : "=" QF_IN_FLOAT(r) : QF_IN_FLOAT(a), QF_IN_FLOAT(b));
    return r;
}

static inline float qf_smaller(float a, float b) {
    float r;
    __asm__("fmin.s %0, %1, %2" : "=" QF_IN_FLOAT(r) : QF_IN_FLOAT(a), QF_IN_FLOAT(b));
    return r;
}

/* To the nearest integer, halves to even whatever the mode is; saturates, a NaN gives the largest integer. */
static inline int32_t qf_to_nearest(float x) {
    int32_t r;
    __asm__("fcvt.w.s %0, %1, rne" : "=r"(r) : QF_IN_FLOAT(x));
    return r;
}
#endif

/* ---- minimum and maximum ------------------------------------------------------------------------------- */

/* A NaN if either is one; -0 is less than +0. */
static inline float qf_maximumf(float a, float b) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    /* The instruction knows -0 from +0, but prefers numbers to NaN. The sum is one where a or b is. */
    float sum = a + b;
    return __builtin_expect(sum == sum, 1) ? qf_larger(a, b) : a != a ? a : b != b ? b : qf_larger(a, b);
#else
    float r = a > b ? a : b;
    r = a == b ? qf_from_bits(qf_bits(a) & qf_bits(b)) : r;
    return a != a ? a : r;
#endif
}

/* The same where neither has a sign: such floats are in the order of their bits, NaN above all. */
static inline float qf_maximum_magnitude(float a, float b) {
    return qf_from_bits((uint32_t)((int32_t)qf_bits(a) > (int32_t)qf_bits(b) ? qf_bits(a) : qf_bits(b)));
}

static inline float qf_minimumf(float a, float b) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    float sum = a + b;
    return __builtin_expect(sum == sum, 1) ? qf_smaller(a, b) : a != a ? a : b != b ? b : qf_smaller(a, b);
#else
    float r = a < b ? a : b;
    r = a == b ? qf_from_bits(qf_bits(a) | qf_bits(b)) : r;
    return a != a ? a : r;
#endif
}

/* The other one if one is a NaN. */
static inline float qf_maxnumf(float a, float b) {
    float r = qf_maximumf(a, b);
    r = a != a ? b : r;
    return b != b ? a : r;
}

static inline float qf_minnumf(float a, float b) {
    float r = qf_minimumf(a, b);
    r = a != a ? b : r;
    return b != b ? a : r;
}

/* ---- rounding to an integral value: exact, the sign of zero kept, infinities and NaN unchanged --------- */

/* Adding 2^23 leaves no bit for a fraction, so the FPU's own rounding (to nearest even) does the work. */
static inline float qf_roundevenf(float x) {
    float a = qf_absf(x);
    float r = (a + 0x1p23f) - 0x1p23f;
    r = qf_copysignf(r, x);
    return qf_select(a < 0x1p23f, r, x);
}

static inline float qf_floorf(float x) {
    float r = qf_roundevenf(x);
    return qf_copysignf(r - qf_select(r > x, 1.0f, 0.0f), x);
}

static inline float qf_ceilf(float x) {
    float r = qf_roundevenf(x);
    return qf_copysignf(r + qf_select(r < x, 1.0f, 0.0f), x);
}

static inline float qf_truncf(float x) {
    float a = qf_absf(x);
    float r = qf_roundevenf(a);
    return qf_copysignf(r - qf_select(r > a, 1.0f, 0.0f), x);
}

/* Half away from zero. */
static inline float qf_roundf(float x) {
    float a = qf_absf(x);
    float r = qf_truncf(a);
    return qf_copysignf(r + qf_select(a - r >= 0.5f, 1.0f, 0.0f), x);
}

/* x within low <= high: one comparison where it is, which is nearly always. */
static inline int32_t qf_clamp_i32(int32_t x, int32_t low, int32_t high) {
    if (__builtin_expect((uint32_t)x - (uint32_t)low > (uint32_t)high - (uint32_t)low, 0)) {
        return x < low ? low : high;
    }
    return x;
}

/* ---- float to integer ---------------------------------------------------------------------------------- */

/* Towards zero and saturating; a NaN gives 0. (C leaves an out-of-range conversion undefined.) */
#define QF_DEFINE_TO_INT(name, type, low, high)                                                                \
    static inline type name(float x) {                                                                         \
        float c = x == x ? x : 0.0f;                                                                           \
        c = c > (low) ? c : (low);                                                                             \
        c = c < (high) ? c : (high);                                                                           \
        return (type)c;                                                                                        \
    }
QF_DEFINE_TO_INT(qf_f32_to_i8, int8_t, -128.0f, 127.0f)
QF_DEFINE_TO_INT(qf_f32_to_u8, uint8_t, 0.0f, 255.0f)
QF_DEFINE_TO_INT(qf_f32_to_i16, int16_t, -32768.0f, 32767.0f)
QF_DEFINE_TO_INT(qf_f32_to_u16, uint16_t, 0.0f, 65535.0f)
#undef QF_DEFINE_TO_INT

/* No float lies between the largest below 2^w and 2^w, the first that does not fit. */
#define QF_DEFINE_TO_INT(name, type, low, high, limit, top)                                                    \
    static inline type name(float x) {                                                                         \
        float c = x == x ? x : 0.0f;                                                                           \
        type r;                                                                                                \
        c = c > (low) ? c : (low);                                                                             \
        c = c < (high) ? c : (high);                                                                           \
        r = (type)c;                                                                                           \
        return x >= (limit) ? (top) : r;                                                                       \
    }
QF_DEFINE_TO_INT(qf_f32_to_i32, int32_t, -0x1p31f, 0x1.fffffep30f, 0x1p31f, INT32_MAX)
QF_DEFINE_TO_INT(qf_f32_to_u32, uint32_t, 0.0f, 0x1.fffffep31f, 0x1p32f, UINT32_MAX)
QF_DEFINE_TO_INT(qf_f32_to_i64, int64_t, -0x1p63f, 0x1.fffffep62f, 0x1p63f, INT64_MAX)
QF_DEFINE_TO_INT(qf_f32_to_u64, uint64_t, 0.0f, 0x1.fffffep63f, 0x1p64f, UINT64_MAX)
#undef QF_DEFINE_TO_INT

/* x to the nearest integer, halves to even, within low <= 0 <= high, both below 2^22 in magnitude; 0 for a NaN. */
static inline int32_t qf_round_within(float x, int32_t low, int32_t high) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    int32_t r = qf_clamp_i32(qf_to_nearest(x), low, high);
    return x == x ? r : 0;
#else
    /* 1.5 * 2^23 leaves no bit for a fraction, and its own bits lie above those of the integer. */
    float c = qf_select(x == x, x, 0.0f);
    /* By masks: of a choice compilers make branches, as what follows is known on one side, and no vectors. */
    c = qf_select(c > (float)low, c, (float)low);
    c = qf_select(c < (float)high, c, (float)high);
    return (int32_t)(qf_bits(c + 0x1.8p23f) - 0x4B400000u);
#endif
}

/* The same of a / b, for a b that a loop does not change. */
static inline int32_t qf_round_quotient(float a, float b, int32_t low, int32_t high) {
#if defined(__riscv_f) || defined(__riscv_zfinx)
    /* As in qf_div_by, whose quotients are no NaN. */
    float y = 1.0f / b;
    if (qf_in_middle(a) && qf_in_middle(b)) {
        float q = a * y;
        return qf_clamp_i32(qf_to_nearest(__builtin_fmaf(__builtin_fmaf(-q, b, a), y, q)), low, high);
    }
    /* Zeros are frequent, and dear to divide. */
    return a == 0.0f ? 0 : qf_round_within(a / b, low, high);
#else
    return qf_round_within(a / b, low, high);
#endif
}

/* ---- exp, expm1, tanh ---------------------------------------------------------------------------------- */

#define QF_LOG2E 1.44269502f
#define QF_LN2_HI 0x1.62e4p-1f /* 15 bits, so that its product with an exponent is exact */
#define QF_LN2_LO 1.42860677e-6f
#define QF_ROUND 0x1.8p23f /* x + QF_ROUND - QF_ROUND rounds |x| < 2^22 to an integer */

/* x = n ln 2 + r with |r| <= ln 2 / 2 (and a little): returns e^r - 1, and n + 1024 in *n.
 * |x| <= 104; for a NaN the result is a NaN and *n any number. `tail` is a small addend of x. */
static inline float qf_exp_parts(float x, float tail, uint32_t *n) {
    float z = x * QF_LOG2E + QF_ROUND;
    float k = z - QF_ROUND;
    float r = ((x - k * QF_LN2_HI) - k * QF_LN2_LO) + tail;
    float q = 0.00138194906f;
    q = q * r + 0.0083686905f;
    q = q * r + 0.041668281f;
    q = q * r + 0.166665211f;
    q = q * r + 0.49999994f;
    *n = qf_bits(z) - qf_bits(QF_ROUND) + 1024u;
    return r + (r * r) * q;
}

/* (1 + p) 2^(n - 1024) in two steps: 2^n itself may be too large or too small for a float. */
static inline float qf_exp_scale(float p, uint32_t n) {
    uint32_t half = n >> 1;
    return ((1.0f + p) * qf_pow2(half - 512u + 127u)) * qf_pow2(n - half - 512u + 127u);
}

/* e^x. Overflows to infinity above 88.7228, underflows gradually below -87.3365 and to 0 below -103.972. */
static inline float qf_expf(float x) {
    uint32_t n;
    float p;
    x = qf_select(x < -104.0f, -104.0f, x);
    x = qf_select(x > 89.0f, 89.0f, x);
    p = qf_exp_parts(x, 0.0f, &n);
    return qf_exp_scale(p, n);
}

/* e^x - 1, -19 <= x <= 89 or NaN: 2^n p + (2^n - 1), all halved against overflow where n is not 0. */
static inline float qf_expm1_core(float x) {
    uint32_t n;
    float p = qf_exp_parts(x, 0.0f, &n);
    float s = qf_pow2(n - 1024u + 126u);
    float r = (s * p + (s - 0.5f)) * 2.0f;
    return qf_select(n == 1024u, p, r);
}

static inline float qf_expm1f(float x) {
    float c = qf_select(x < -18.0f, -18.0f, x);
    c = qf_select(c > 89.0f, 89.0f, c);
    return qf_copysignf(qf_expm1_core(c), x);
}

/* With e = e^(-2|x|), tanh |x| is (1 - e) / (1 + e), and nearer to 1 more exactly 1 - 2e / (1 + e). */
static inline float qf_tanhf(float x) {
    float a = qf_absf(x);
    uint32_t n;
    float p, s, e, q;
    a = qf_select(a > 9.5f, 9.5f, a); /* where the nearest float is 1 */
    p = qf_exp_parts(-2.0f * a, 0.0f, &n);
    s = qf_pow2(n - 1024u + 127u);
    e = s * p + s;
    q = qf_select(a < 0.625f, (1.0f - s) - s * p, 2.0f * e) / (1.0f + e);
    return qf_copysignf(qf_select(a < 0.625f, q, 1.0f - q), x);
}

/* ---- erf ----------------------------------------------------------------------------------------------- */

/* |x| < 7/8: x + x p(x^2). Above: 1 - exp(-|x| p(|x|)), where an error in the exponent weighs erfc(7/8) = 0.22 at
 * most. */
static inline float qf_erff(float x) {
    float a = qf_absf(x);
    float t = x * x;
    float s, p, near_zero, far;
    s = 7.86746896e-05f;
    s = s * t - 0.000802640163f;
    s = s * t + 0.00519094104f;
    s = s * t - 0.0268553644f;
    s = s * t + 0.112836227f;
    s = s * t - 0.376126289f;
    s = s * t + 0.128379166f;
    near_zero = x + x * s;
    a = qf_select(a > 4.0f, 4.0f, a); /* where the nearest float is 1 */
    p = -0.000215229666f;
    p = p * a + 0.00322515378f;
    p = p * a - 0.0229224581f;
    p = p * a + 0.105312183f;
    p = p * a + 0.635680377f;
    p = p * a + 1.1285255f;
    far = qf_copysignf(1.0f - qf_expf(-(a * p)), x);
    return qf_select(a < 0.875f, near_zero, far);
}

/* ---- log, log1p ---------------------------------------------------------------------------------------- */

#define QF_TWO_THIRDS 0x3F2AAAABu

/* x = 2^k m, m in [2/3, 4/3), for a positive normal x: returns m, and k + 128 in *k. */
static inline float qf_log_parts(float x, uint32_t *k) {
    uint32_t b = qf_bits(x);
    *k = (b + 0x40000000u - QF_TWO_THIRDS) >> 23;
    return qf_from_bits(b - ((*k - 128u) << 23));
}

/* log(1 + f) + k ln 2 = f - f^2/2 + f^3 p(f) + k ln 2, f in [-1/3, 1/3]. */
static inline float qf_log_core(float f, float k) {
    float t = f * f;
    float p = 0.119584665f;
    float r;
    p = p * f - 0.128301173f;
    p = p * f + 0.10769555f;
    p = p * f - 0.121994175f;
    p = p * f + 0.143027171f;
    p = p * f - 0.166792959f;
    p = p * f + 0.199996814f;
    p = p * f - 0.249998271f;
    p = p * f + 0.333333343f;
    r = (t * f) * p + k * QF_LN2_LO;
    r = r - 0.5f * t;
    r = r + f;
    return r + k * QF_LN2_HI;
}

/* -infinity at +-0, NaN below. */
static inline float qf_logf(float x) {
    float tiny = qf_select(x < FLT_MIN, 25.0f, 0.0f);
    float scaled = qf_select(x < FLT_MIN, x * 0x1p25f, x);
    uint32_t k;
    float m = qf_log_parts(scaled, &k);
    float r = qf_log_core(m - 1.0f, (float)(int32_t)k - 128.0f - tiny);
    float special = qf_select(x < 0.0f, QF_NAN, x); /* else infinity or NaN */
    special = qf_select(x == 0.0f, -QF_INF, special);
    return qf_select((x > 0.0f) & (x < QF_INF), r, special);
}

/* log(1 + x). c is what rounding 1 + x left out, so that m - 1 + c 2^-k is right to its last bit. */
static inline float qf_log1pf(float x) {
    float u = 1.0f + x;
    float b = u - 1.0f;
    float c = (1.0f - (u - b)) + (x - b);
    uint32_t k;
    float m = qf_log_parts(u, &k);
    float down = k < 224u ? qf_pow2(255u - k) : 0.0f; /* from 2^96 on, 1 + x is x in any case */
    float r = qf_log_core((m - 1.0f) + c * down, (float)(int32_t)k - 128.0f);
    float special = qf_select(x < -1.0f, QF_NAN, x); /* else 0, infinity or NaN */
    special = qf_select(x == -1.0f, -QF_INF, special);
    return qf_select((x > -1.0f) & (x < QF_INF) & (x != 0.0f), r, special);
}

/* ---- sqrt, rsqrt --------------------------------------------------------------------------------------- */

/* Correctly rounded, as IEEE asks. x = X 2^-23 4^h with 2^23 <= X < 2^25, and S = sqrt(X 2^23) rounded to an integer
 * is the mantissa. A float estimate is within 16 of S; the remainder R = X 2^23 - S^2 then fits 32 bits although its
 * two terms don't, so it is exact modulo 2^32, and decides: -S < R <= S exactly when S is the nearest. */
static inline float qf_sqrtf(float x) {
    float scaled = qf_select(x < FLT_MIN, x * 0x1p24f, x);
    uint32_t b = qf_bits(scaled);
    uint32_t e = b >> 23;
    uint32_t odd = (e & 1u) ^ 1u; /* the exponent is e - 127 */
    uint32_t fraction = (b & 0x7FFFFFu) | 0x800000u;
    uint32_t mantissa = fraction + (fraction & (0u - odd));
    float m = qf_from_bits((b & 0x7FFFFFu) | ((127u + odd) << 23));
    float y = qf_from_bits(0x5F376000u - (qf_bits(m) >> 1)); /* within 3.5 % of 1/sqrt(m) */
    uint32_t s;
    int32_t remainder, step;
    float r;
    y = y * (1.50132501f - 0.50044167f * m * y * y); /* Newton, centred: within 2^-10.1 */
    y = y * (1.50000088f - 0.500000293f * m * y * y); /* within 2^-20.7 */
    s = (uint32_t)(int32_t)(m * y * 0x1p23f);
    remainder = (int32_t)((mantissa << 23) - s * s);
    step = (int32_t)((float)remainder * (y * 0x1p-24f));
    remainder = (int32_t)((uint32_t)remainder - (uint32_t)step * (2u * s + (uint32_t)step));
    s += (uint32_t)step;
    s += (uint32_t)(remainder > (int32_t)s);
    s -= (uint32_t)(remainder <= -(int32_t)s);
    r = qf_from_bits((((e + 127u - odd) >> 1) << 23) + (s - 0x800000u));
    r = qf_select(x < FLT_MIN, r * 0x1p-12f, r);
    return qf_select((x > 0.0f) & (x < QF_INF), r, qf_select(x < 0.0f, QF_NAN, x));
}

/* +-infinity at +-0, 0 at infinity, NaN below 0. */
static inline float qf_rsqrtf(float x) { return 1.0f / qf_sqrtf(x); }

/* ---- pow ----------------------------------------------------------------------------------------------- */

/* x^y = exp(y log|x|) with the logarithm to 36 bits as a sum of two floats; C99's special cases, so that pow(1, y)
 * and pow(x, 0) are 1 even for a NaN.
 *
 * log(m) = 2s (1 + g), s = (m - 1)/(m + 1), g = s^2/3 + s^4 p(s^2). Heads have 12 bits: their products are exact,
 * with and without contraction. */
static inline float qf_powf(float x, float y) {
    float ax = qf_absf(x);
    float ay = qf_absf(y);
    float tiny = qf_select(ax < FLT_MIN, 25.0f, 0.0f);
    uint32_t kb, n;
    float m = qf_log_parts(qf_select(ax < FLT_MIN, ax * 0x1p25f, ax), &kb);
    float k = (float)(int32_t)kb - 128.0f - tiny;
    float f = m - 1.0f;
    float d = m + 1.0f;
    float d_hi = qf_head(d);
    float d_lo = m - (d_hi - 1.0f);
    float s = f / d;
    float s_hi = qf_head(s);
    float s_lo = ((f - s_hi * d_hi) - s_hi * d_lo) / d;
    float t = s * s;
    float p = (0.119360901f * t + 0.142628223f) * t + 0.200001955f;
    float a = s_hi * s_hi;
    float g_hi = qf_head(a * 0.333333343f);
    float g_lo = ((a - 3.0f * g_hi) + (s_hi + s) * s_lo) * 0.333333343f + (t * t) * p;
    /* three exact terms, added with what each sum loses */
    float l0 = k * QF_LN2_HI;
    float l1 = 2.0f * s_hi;
    float l2 = 2.0f * (s_hi * g_hi);
    float sum1 = l0 + l1;
    float v1 = sum1 - l0;
    float lost1 = (l0 - (sum1 - v1)) + (l1 - v1);
    float sum2 = sum1 + l2;
    float v2 = sum2 - sum1;
    float lost2 = (sum1 - (sum2 - v2)) + (l2 - v2);
    float rest = (lost1 + lost2) + (k * QF_LN2_LO + 2.0f * (s_lo + (s_lo * g_hi + s * g_lo)));
    float l_hi = qf_head(sum2 + rest);
    float l_lo = (sum2 - l_hi) + rest;
    /* past 2^31 every x but 1 overflows or underflows; y no larger than that keeps the products finite */
    float yc = qf_copysignf(qf_select(ay > 0x1p31f, 0x1p31f, ay), y);
    float y_hi = qf_head(yc);
    float y_lo = yc - y_hi;
    float w_hi = y_hi * l_hi;
    float w_lo = yc * l_lo + y_lo * l_hi;
    float w = w_hi + w_lo;
    float tail = w_lo - (w - w_hi);
    float half = 0.5f * ay;
    /* all floats from 2^23 on are integers, from 2^24 on even ones */
    int integral = (ay >= 0x1p23f) | (qf_truncf(ay) == ay);
    int odd = (ay < 0x1p24f) & integral & (qf_truncf(half) != half);
    float r;
    tail = qf_select(qf_absf(w) < 104.0f, tail, 0.0f);
    w = qf_select(w < -104.0f, -104.0f, w);
    w = qf_select(w > 89.0f, 89.0f, w);
    p = qf_exp_parts(w, tail, &n);
    r = qf_exp_scale(p, n);
    r = qf_select((ax == 0.0f) | (ax == QF_INF), qf_select((ax == 0.0f) == (y < 0.0f), QF_INF, 0.0f), r);
    r = qf_from_bits(qf_bits(r) ^ (qf_bits(x) & (odd ? QF_SIGN : 0u)));
    r = qf_select((x < 0.0f) & (ax < QF_INF) & !integral, QF_NAN, r);
    r = qf_select((x != x) | (y != y), x + y, r);
    return qf_select((x == 1.0f) | (y == 0.0f), 1.0f, r);
}

#endif
