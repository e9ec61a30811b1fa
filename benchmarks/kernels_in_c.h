/* What generated kernels are compared with: a matmul in plain C, and the scheme of hand-written libraries of kernels for PULP
 * clusters, one row by seven columns. Rows are divided over the cores.
 *
 * int8: y = scale * (a w - zero * sum of a) + bias; f32: y = a w + bias. Like the generated kernels they multiply and add in one.
 */
#ifndef KERNELS_IN_C_H
#define KERNELS_IN_C_H

#include "qfold_rt.h"

#define FMA(a, b, c) __builtin_fmaf((a), (b), (c))

enum { PEER_COLUMNS = 7 };

/* The end of an element: `sum` of a row is 0 where there is no zero point. */
#define FINISH_INT8(acc, n) (FMA(scale[n], FMA(-(float)zero[n], sum, (acc)), bias[n]))
#define FINISH_F32(acc, n) ((acc) + bias[n])
#define ROW_SUM_INT8                                                                                           \
    float sum = 0.0f;                                                                                          \
    for (ptrdiff_t i = 0; i < k; i++) {                                                                        \
        sum += a[row * k + i];                                                                                 \
    }
#define ROW_SUM_F32
#define PARAMETERS_INT8 const int8_t *restrict w, const float *restrict scale, const int8_t *restrict zero
#define PARAMETERS_F32 const float *restrict w

#define DEFINE_PLAIN(NAME, KIND)                                                                               \
    static inline void plain_##NAME(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *restrict a,            \
                                    PARAMETERS_##KIND, const float *restrict bias, float *restrict y) {        \
        ptrdiff_t first, last;                                                                                 \
        qf_share(m, qf_core_id(), qf_num_cores(), &first, &last);                                              \
        for (ptrdiff_t row = first; row < last; row++) {                                                       \
            ROW_SUM_##KIND for (ptrdiff_t column = 0; column < n; column++) {                                  \
                float acc = 0.0f;                                                                              \
                for (ptrdiff_t i = 0; i < k; i++) {                                                            \
                    acc = FMA(a[row * k + i], (float)w[i * n + column], acc);                                  \
                }                                                                                              \
                y[row * n + column] = FINISH_##KIND(acc, column);                                              \
            }                                                                                                  \
        }                                                                                                      \
    }

/* Each weight is converted where it is used, once for every row. */
#define DEFINE_PEER(NAME, KIND)                                                                                \
    static inline void peer_##NAME(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *restrict a,             \
                                   PARAMETERS_##KIND, const float *restrict bias, float *restrict y) {         \
        ptrdiff_t first, last;                                                                                 \
        qf_share(m, qf_core_id(), qf_num_cores(), &first, &last);                                              \
        for (ptrdiff_t row = first; row < last; row++) {                                                       \
            ptrdiff_t column = 0;                                                                              \
            ROW_SUM_##KIND for (; column + PEER_COLUMNS <= n; column += PEER_COLUMNS) {                        \
                float acc[PEER_COLUMNS] = {0.0f};                                                              \
                for (ptrdiff_t i = 0; i < k; i++) {                                                            \
                    float x = a[row * k + i];                                                                  \
                    for (int j = 0; j < PEER_COLUMNS; j++) {                                                   \
                        acc[j] = FMA(x, (float)w[i * n + column + j], acc[j]);                                 \
                    }                                                                                          \
                }                                                                                              \
                for (int j = 0; j < PEER_COLUMNS; j++) {                                                       \
                    y[row * n + column + j] = FINISH_##KIND(acc[j], column + j);                               \
                }                                                                                              \
            }                                                                                                  \
            for (; column < n; column++) {                                                                     \
                float acc = 0.0f;                                                                              \
                for (ptrdiff_t i = 0; i < k; i++) {                                                            \
                    acc = FMA(a[row * k + i], (float)w[i * n + column], acc);                                  \
                }                                                                                              \
                y[row * n + column] = FINISH_##KIND(acc, column);                                              \
            }                                                                                                  \
        }                                                                                                      \
    }

DEFINE_PLAIN(int8, INT8)
DEFINE_PLAIN(f32, F32)
DEFINE_PEER(int8, INT8)
DEFINE_PEER(f32, F32)

#endif
