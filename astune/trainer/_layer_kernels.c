/* Root-mean-square norm, gated SiLU and rotary positions of a training step on a CPU, forward and backward, and sums of
   gradients: each reads and writes memory once.

   Compiled by _layer_kernels.py, which holds the signatures once more, with Element float or bfloat16. Numbers are
   computed in float32 and rounded where torch's operators round them, positions once in place of three times, each by
   one thread in one order, whatever the number of threads. Layouts are row-major but where strides are given. */

#include "element.h"
#include "exponential.h"

#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512") /* a quarter faster than half of it, which is what gcc prefers */
#endif
#define FEW 16384 /* numbers for one thread */
#define RUN 4096  /* numbers that a thread takes at once where rows do not matter */

INLINE void scaled(const Element *restrict x, const Element *restrict weight, Element *restrict out, float scale,
                   int64_t dim) {
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) out[i] = rounded(widened(rounded(widened(x[i]) * scale)) * widened(weight[i]));
}

/* out [rows, dim] = x [rows, dim] * scale [rows], rounded, times weight [dim]; scale is 1 over x's root mean square. */
void norm(const Element *x, const Element *weight, Element *out, float *scale, int64_t rows, int64_t dim,
          float epsilon, int64_t threads) {
#pragma omp parallel for if (rows * dim > FEW) num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const Element *from = x + row * dim;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < dim; i++) squares += widened(from[i]) * widened(from[i]);
        scale[row] = 1.0f / sqrtf(squares / dim + epsilon);
        scaled(from, weight, out + row * dim, scale[row], dim);
    }
}

/* The same where the scale is known. */
void normed(const Element *x, const Element *weight, const float *scale, Element *out, int64_t rows, int64_t dim,
            int64_t threads) {
#pragma omp parallel for if (rows * dim > FEW) num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) scaled(x + row * dim, weight, out + row * dim, scale[row], dim);
}

/* grad_x [rows, dim] of the norm. Where grad_weight is given, [blocks, dim], it gets the weight's gradient in parts,
   each of `block` rows. */
void norm_backward(const Element *restrict x, const Element *restrict weight, const float *restrict scale,
                   const Element *restrict grad, Element *restrict grad_x, float *restrict grad_weight, int64_t rows,
                   int64_t dim, int64_t block, int64_t threads) {
#pragma omp parallel for if (rows * dim > FEW) num_threads(threads) schedule(static)
    for (int64_t start = 0; start < rows; start += block) {
        float *restrict part = grad_weight ? grad_weight + start / block * dim : 0;
        for (int64_t i = 0; part && i < dim; i++) part[i] = 0;
        for (int64_t row = start; row < least(start + block, rows); row++) {
            const Element *restrict from = x + row * dim, *restrict given = grad + row * dim;
            Element *restrict to = grad_x + row * dim;
            const float by = scale[row];
            float along = 0;
#pragma omp simd reduction(+ : along)
            for (int64_t i = 0; i < dim; i++)
                along += widened(given[i]) * widened(weight[i]) * (widened(from[i]) * by);
            along /= dim;
            if (part)
#pragma omp simd
                for (int64_t i = 0; i < dim; i++) part[i] += widened(given[i]) * (widened(from[i]) * by);
#pragma omp simd
            for (int64_t i = 0; i < dim; i++)
                to[i] = rounded((widened(given[i]) * widened(weight[i]) - widened(from[i]) * by * along) * by);
        }
    }
}

/* e^x, also where it is subnormal or infinite; not a number stays one. */
INLINE float exponential(float x) {
    x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    const float n = rintf(x * 1.44269504f);
    const int32_t half = (int32_t)n >> 1, rest = (int32_t)n - half; /* 2^n itself may be no number */
    union { int32_t bits; float value; } low = {(half + 127) << 23}, high = {(rest + 127) << 23};
    return exp_of_rest(x, n) * low.value * high.value;
}

/* out [n] = silu(gate), rounded, times up. */
void gated_silu(const Element *restrict gate, const Element *restrict up, Element *restrict out, int64_t n,
                int64_t threads) {
#pragma omp parallel for if (n > FEW) num_threads(threads) schedule(static)
    for (int64_t start = 0; start < n; start += RUN) {
        const int64_t end = least(start + RUN, n);
#pragma omp simd
        for (int64_t i = start; i < end; i++) {
            const float x = widened(gate[i]);
            out[i] = rounded(widened(rounded(x / (1.0f + exponential(-x)))) * widened(up[i]));
        }
    }
}

/* grad_gate and grad_up [n]. */
void gated_silu_backward(const Element *restrict gate, const Element *restrict up, const Element *restrict grad,
                         Element *restrict grad_gate, Element *restrict grad_up, int64_t n, int64_t threads) {
#pragma omp parallel for if (n > FEW) num_threads(threads) schedule(static)
    for (int64_t start = 0; start < n; start += RUN) {
        const int64_t end = least(start + RUN, n);
#pragma omp simd
        for (int64_t i = start; i < end; i++) {
            const float x = widened(gate[i]), given = widened(grad[i]), sigmoid = 1.0f / (1.0f + exponential(-x));
            grad_up[i] = rounded(given * widened(rounded(x * sigmoid)));
            grad_gate[i] = rounded(widened(rounded(given * widened(up[i]))) * sigmoid * (1.0f + x * (1.0f - sigmoid)));
        }
    }
}

/* Rotary positions: out = x * cos + swapped(x) * sin for x and out [tokens, heads, dim] of any strides, cos and sin
   [tokens, dim]; swapped has the halves of a head exchanged, the first one negative. */
void rotate(const Element *restrict x, int64_t x_token, int64_t x_head, const Element *restrict cos,
            const Element *restrict sin, Element *restrict out, int64_t out_token, int64_t out_head, int64_t tokens,
            int64_t heads, int64_t dim, int64_t threads) {
    const int64_t half = dim / 2;
#pragma omp parallel for if (tokens * heads * dim > FEW) num_threads(threads) schedule(static)
    for (int64_t token = 0; token < tokens; token++) {
        const Element *restrict c = cos + token * dim, *restrict s = sin + token * dim;
        for (int64_t head = 0; head < heads; head++) {
            const Element *restrict from = x + token * x_token + head * x_head;
            Element *restrict to = out + token * out_token + head * out_head;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                const float a = widened(from[i]), b = widened(from[i + half]);
                to[i] = rounded(a * widened(c[i]) - b * widened(s[i]));
                to[i + half] = rounded(b * widened(c[i + half]) + a * widened(s[i + half]));
            }
        }
    }
}

/* total [n] += part. */
void add_up(float *restrict total, const Element *restrict part, int64_t n, int64_t threads) {
#pragma omp parallel for simd if (n > FEW) num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) total[i] += widened(part[i]);
}
