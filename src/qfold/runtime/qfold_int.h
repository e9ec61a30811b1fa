/* Integers for generated code: two four-bit integers to a byte, and the arithmetic of `arith` on signless integers.
 *
 * `arith` computes modulo 2^width and has no undefined overflow; C does for signed types. Here a signless integer of
 * `w` bits is an intw_t, arithmetic goes through uintw_t, and what `arith` leaves undefined has a value: x / 0 and x % 0
 * are 0, INT_MIN / -1 is INT_MIN, and a shift by the width or more (or by a negative amount, which is one) gives what as
 * many shifts by one bit would.
 */
#ifndef QFOLD_INT_H
#define QFOLD_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- four bits ----------------------------------------------------------------------------------------- */

/* Element 2i is the low nibble of byte i. Structs: a pointer to bytes or floats does not pass for one to nibbles. */
typedef struct {
    uint8_t nibbles;
} qf_i4x2;

typedef struct {
    uint8_t nibbles;
} qf_u4x2;

static inline uint8_t qf_load_u4(const qf_u4x2 *p, ptrdiff_t i) {
    return (uint8_t)((p[i >> 1].nibbles >> ((i & 1) * 4)) & 15);
}

static inline int8_t qf_load_i4(const qf_i4x2 *p, ptrdiff_t i) {
    int nibble = (p[i >> 1].nibbles >> ((i & 1) * 4)) & 15;
    return (int8_t)((nibble ^ 8) - 8);
}

static inline void qf_store_u4(qf_u4x2 *p, ptrdiff_t i, uint8_t value) {
    int shift = (int)(i & 1) * 4;
    int kept = p[i >> 1].nibbles & (0xF0 >> shift);
    p[i >> 1].nibbles = (uint8_t)(kept | ((value & 15) << shift));
}

static inline void qf_store_i4(qf_i4x2 *p, ptrdiff_t i, int8_t value) {
    int shift = (int)(i & 1) * 4;
    int kept = p[i >> 1].nibbles & (0xF0 >> shift);
    p[i >> 1].nibbles = (uint8_t)(kept | ((value & 15) << shift));
}

/* ---- indices ------------------------------------------------------------------------------------------- */

/* An index that comes from data, held to 0 .. extent - 1: whatever the data is, no read leaves its array. */
static inline ptrdiff_t qf_clamp_index(int64_t i, ptrdiff_t extent) {
    ptrdiff_t low = i < 0 ? 0 : (ptrdiff_t)i;
    return i < (int64_t)extent ? low : extent - 1;
}

/* ---- signless arithmetic ------------------------------------------------------------------------------- */

/* `wide` is unsigned and at least as wide as int, so that no operand is promoted to a signed type. */
#define QF_DEFINE_INT(w, wide, low)                                                                            \
    static inline int##w##_t qf_add_i##w(int##w##_t a, int##w##_t b) {                                         \
        return (int##w##_t)(uint##w##_t)((wide)a + (wide)b);                                                   \
    }                                                                                                          \
    static inline int##w##_t qf_sub_i##w(int##w##_t a, int##w##_t b) {                                         \
        return (int##w##_t)(uint##w##_t)((wide)a - (wide)b);                                                   \
    }                                                                                                          \
    static inline int##w##_t qf_mul_i##w(int##w##_t a, int##w##_t b) {                                         \
        return (int##w##_t)(uint##w##_t)((wide)a * (wide)b);                                                   \
    }                                                                                                          \
    static inline int##w##_t qf_shl_i##w(int##w##_t a, int##w##_t b) {                                         \
        return (uint##w##_t)b < w ? (int##w##_t)(uint##w##_t)((wide)(uint##w##_t)a << b) : (int##w##_t)0;      \
    }                                                                                                          \
    static inline int##w##_t qf_shru_i##w(int##w##_t a, int##w##_t b) {                                        \
        return (uint##w##_t)b < w ? (int##w##_t)(uint##w##_t)((uint##w##_t)a >> b) : (int##w##_t)0;            \
    }                                                                                                          \
    static inline int##w##_t qf_shrs_i##w(int##w##_t a, int##w##_t b) {                                        \
        return (int##w##_t)(a >> ((uint##w##_t)b < w ? b : w - 1));                                            \
    }                                                                                                          \
    static inline int##w##_t qf_divu_i##w(int##w##_t a, int##w##_t b) {                                        \
        return b == 0 ? (int##w##_t)0 : (int##w##_t)((uint##w##_t)a / (uint##w##_t)b);                         \
    }                                                                                                          \
    static inline int##w##_t qf_remu_i##w(int##w##_t a, int##w##_t b) {                                        \
        return b == 0 ? (int##w##_t)0 : (int##w##_t)((uint##w##_t)a % (uint##w##_t)b);                         \
    }                                                                                                          \
    static inline int##w##_t qf_divs_i##w(int##w##_t a, int##w##_t b) {                                        \
        return b == 0 ? (int##w##_t)0 : b == -1 ? qf_sub_i##w(0, a) : (int##w##_t)(a / b);                     \
    }                                                                                                          \
    static inline int##w##_t qf_rems_i##w(int##w##_t a, int##w##_t b) {                                        \
        return b == 0 || b == -1 ? (int##w##_t)0 : (int##w##_t)(a % b);                                        \
    }                                                                                                          \
    static inline int##w##_t qf_floordivs_i##w(int##w##_t a, int##w##_t b) {                                   \
        int##w##_t r = qf_rems_i##w(a, b);                                                                     \
        return (int##w##_t)(qf_divs_i##w(a, b) - (r != 0 && (r < 0) != (b < 0) ? 1 : 0));                      \
    }                                                                                                          \
    static inline int##w##_t qf_ceildivs_i##w(int##w##_t a, int##w##_t b) {                                    \
        int##w##_t r = qf_rems_i##w(a, b);                                                                     \
        return (int##w##_t)(qf_divs_i##w(a, b) + (r != 0 && (r < 0) == (b < 0) ? 1 : 0));                      \
    }                                                                                                          \
    static inline int##w##_t qf_ceildivu_i##w(int##w##_t a, int##w##_t b) {                                    \
        return qf_add_i##w(qf_divu_i##w(a, b), (int##w##_t)(qf_remu_i##w(a, b) != 0));                         \
    }                                                                                                          \
    static inline int##w##_t qf_maxs_i##w(int##w##_t a, int##w##_t b) { return a > b ? a : b; }                \
    static inline int##w##_t qf_mins_i##w(int##w##_t a, int##w##_t b) { return a < b ? a : b; }                \
    static inline int##w##_t qf_maxu_i##w(int##w##_t a, int##w##_t b) {                                        \
        return (uint##w##_t)a > (uint##w##_t)b ? a : b;                                                        \
    }                                                                                                          \
    static inline int##w##_t qf_minu_i##w(int##w##_t a, int##w##_t b) {                                        \
        return (uint##w##_t)a < (uint##w##_t)b ? a : b;                                                        \
    }                                                                                                          \
    static inline int##w##_t qf_abs_i##w(int##w##_t a) { return a < 0 ? qf_sub_i##w(0, a) : a; }               \
    /* Towards zero and saturating; a NaN gives 0. `low` is a power of two, exact in a double. */              \
    static inline int##w##_t qf_f64_to_i##w(double x) {                                                        \
        if (!(x > (low))) {                                                                                    \
            return x == x ? INT##w##_MIN : (int##w##_t)0;                                                      \
        }                                                                                                      \
        return x >= -(low) ? INT##w##_MAX : (int##w##_t)x;                                                     \
    }                                                                                                          \
    static inline uint##w##_t qf_f64_to_u##w(double x) {                                                       \
        if (!(x > 0.0)) {                                                                                      \
            return 0;                                                                                          \
        }                                                                                                      \
        return x >= -2.0 * (low) ? UINT##w##_MAX : (uint##w##_t)x;                                             \
    }

QF_DEFINE_INT(8, uint32_t, -128.0)
QF_DEFINE_INT(16, uint32_t, -32768.0)
QF_DEFINE_INT(32, uint32_t, -2147483648.0)
QF_DEFINE_INT(64, uint64_t, -9223372036854775808.0)
#undef QF_DEFINE_INT

/* ---- double -------------------------------------------------------------------------------------------- */

static inline double qf_maximumd(double a, double b) {
    return a != a || a > b ? a : b;
}

static inline double qf_minimumd(double a, double b) {
    return a != a || a < b ? a : b;
}

static inline double qf_maxnumd(double a, double b) {
    return a != a || a < b ? b : a;
}

static inline double qf_minnumd(double a, double b) {
    return a != a || a > b ? b : a;
}

static inline double qf_absd(double x) {
    return x < 0.0 ? -x : x;
}

/* Halves to even: the sum with 2^52 has no bits for a fraction. */
static inline double qf_roundevend(double x) {
    double a = qf_absd(x);
    double r = (a + 0x1p52) - 0x1p52;
    r = x < 0.0 ? -r : r;
    return r == x || !(a < 0x1p52) ? x : r;
}

#endif
