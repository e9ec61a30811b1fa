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
#define QF_DEFINE_INT(w, wide)                                                                                 \
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
    static inline int##w##_t qf_abs_i##w(int##w##_t a) { return a < 0 ? qf_sub_i##w(0, a) : a; }

QF_DEFINE_INT(8, uint32_t)
QF_DEFINE_INT(16, uint32_t)
QF_DEFINE_INT(32, uint32_t)
QF_DEFINE_INT(64, uint64_t)
#undef QF_DEFINE_INT

/* The upper half of the product. */
static inline int32_t qf_mulhi_i32(int32_t a, int32_t b) {
    return (int32_t)(uint32_t)((uint64_t)((int64_t)a * b) >> 32);
}

/* ---- double -------------------------------------------------------------------------------------------- */

typedef union {
    double d;
    uint64_t u;
} qf_double_bits_t;

static inline uint64_t qf_double_bits(double x) {
    qf_double_bits_t b;
    b.d = x;
    return b.u;
}

static inline double qf_double_from_bits(uint64_t u) {
    qf_double_bits_t b;
    b.u = u;
    return b.d;
}

static inline double qf_maximumd(double a, double b) {
    return a != a || a > b ? a : b;
}

static inline double qf_minimumd(double a, double b) {
    return a != a || a < b ? a : b;
}

/* The other one if one is a NaN: a single instruction where b is a constant. */
static inline double qf_maxnumd(double a, double b) {
    return a > b || b != b ? a : b;
}

static inline double qf_minnumd(double a, double b) {
    return a < b || b != b ? a : b;
}

#define QF_DOUBLE_SIGN 0x8000000000000000u

static inline double qf_absd(double x) {
    return qf_double_from_bits(qf_double_bits(x) & ~QF_DOUBLE_SIGN);
}

/* Halves to even: a sum with 2^52 has no bits for a fraction. What is chosen is the addend and not the result, which compilers
 * would make a branch of, and no vectors. */
static inline double qf_roundevend(double x) {
    double a = qf_absd(x);
    double whole = a < 0x1p52 ? 0x1p52 : 0.0;
    double r = (a + whole) - whole;
    return qf_double_from_bits(qf_double_bits(r) | (qf_double_bits(x) & QF_DOUBLE_SIGN));
}

/* x to the nearest integer, halves to even, within low <= high; low for a NaN. 1.5 * 2^52 leaves no bit for a fraction, and its own
 * bits lie above those of the integer. Chosen by masks, which compilers make vectors of wherever this is inlined. */
static inline double qf_selectd(int c, double a, double b) {
    uint64_t mask = 0u - (uint64_t)c;
    return qf_double_from_bits((qf_double_bits(a) & mask) | (qf_double_bits(b) & ~mask));
}

static inline int32_t qf_roundd_within(double x, int32_t low, int32_t high) {
    double c = qf_selectd(x > (double)low, x, (double)low);
    c = qf_selectd(c < (double)high, c, (double)high);
    return (int32_t)(uint32_t)qf_double_bits(c + 0x1.8p52);
}

/* Towards zero and saturating; a NaN gives 0. Bounds of up to 32 bits are exact in a double. */
#define QF_DEFINE_TO_INT(name, type, low, high)                                                                \
    static inline type name(double x) {                                                                        \
        double c = x == x ? x : 0.0;                                                                           \
        c = c > (low) ? c : (low);                                                                             \
        c = c < (high) ? c : (high);                                                                           \
        return (type)c;                                                                                        \
    }
QF_DEFINE_TO_INT(qf_f64_to_i8, int8_t, -128.0, 127.0)
QF_DEFINE_TO_INT(qf_f64_to_u8, uint8_t, 0.0, 255.0)
QF_DEFINE_TO_INT(qf_f64_to_i16, int16_t, -32768.0, 32767.0)
QF_DEFINE_TO_INT(qf_f64_to_u16, uint16_t, 0.0, 65535.0)
QF_DEFINE_TO_INT(qf_f64_to_i32, int32_t, -2147483648.0, 2147483647.0)
QF_DEFINE_TO_INT(qf_f64_to_u32, uint32_t, 0.0, 4294967295.0)
#undef QF_DEFINE_TO_INT

static inline int64_t qf_f64_to_i64(double x) {
    if (!(x > -0x1p63)) {
        return x == x ? INT64_MIN : 0;
    }
    return x >= 0x1p63 ? INT64_MAX : (int64_t)x;
}

static inline uint64_t qf_f64_to_u64(double x) {
    if (!(x > 0.0)) {
        return 0;
    }
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)x;
}

#endif
