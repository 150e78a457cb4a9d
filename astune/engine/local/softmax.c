/* The softmax over a vocabulary on a CPU, for sampling and training alike: each reads a row's logits from memory once
   or twice, and neither writes its weights there.

   Compiled by softmax.py, which holds the signatures once more, with Element float or bfloat16. Numbers are float32, and
   rows are summed over blocks of the vocabulary, and these in float64, each by one thread in one order: no row's numbers
   depend on those beside it, and a token's are the same in every function. Logits are [rows, vocabulary], row-major. */

#include "element.h"
#include "exponential.h"
#include <omp.h>

#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512") /* a quarter faster than half of it, which is what gcc prefers */
#endif
#define BLOCK 256
#define LANES 16
#define LOWEST -78.0f            /* the exponential of a logit below it is exactly 0 */
#define ALMOST_ONE (1.0 - 0x1p-50) /* rounding must not carry a draw past the last weight */

INLINE float largest(const Element *logits, int64_t vocabulary) {
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < vocabulary; i++) top = widened(logits[i]) > top ? widened(logits[i]) : top;
    return top;
}

INLINE float sum_of(float *lanes) {
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* x = (logits - top) / temperature [BLOCK], where a row ends within the block as if -infinity followed. */
INLINE void tempered(const Element *logits, int64_t count, float top, float temperature, float *x) {
    if (count >= BLOCK)
        for (int i = 0; i < BLOCK; i++) x[i] = widened(logits[i]) - top;
    else
        for (int i = 0; i < BLOCK; i++) x[i] = i < count ? widened(logits[i]) - top : -INFINITY;
    if (temperature != 1.0f)
        for (int i = 0; i < BLOCK; i++) x[i] /= temperature;
}

INLINE float weight_of(float x) { return x < LOWEST ? 0.0f : exp_of_negative(x); }

/* The exponentials of x [BLOCK]; returns their sum. One function, whose last bits do not depend on its caller. */
static __attribute__((noinline)) float exponentiate(const float *x, float *weights) {
    float sums[LANES] = {0};
    for (int i = 0; i < BLOCK; i++) weights[i] = weight_of(x[i]);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += weights[i + lane];
    return sum_of(sums);
}

/* The sum of x [BLOCK] by their weights; x may be -infinity where its weight is 0. Nothing is read on a condition: for
   AVX2 gcc 12 takes the same lanes of the condition for two vectors. */
static float moment(const float *x, const float *weights) {
    float sums[LANES] = {0};
    for (int i = 0; i < BLOCK; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const float bounded = x[i + lane] > LOWEST ? x[i + lane] : LOWEST;
            sums[lane] += weights[i + lane] * bounded;
        }
    return sum_of(sums);
}

/* The largest logit of each row, the logarithm of the sum of exponentials of what is tempered, and the entropy. */
void statistics(const Element *logits, int64_t rows, int64_t vocabulary, float temperature, float *tops, float *lse,
                float *entropies, int64_t threads) {
#pragma omp parallel for if (rows > 1) num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const Element *own = logits + row * vocabulary;
        const float top = largest(own, vocabulary);
        float x[BLOCK], weights[BLOCK];
        double total = 0, first_moment = 0;
        for (int64_t start = 0; start < vocabulary; start += BLOCK) {
            tempered(own + start, vocabulary - start, top, temperature, x);
            total += exponentiate(x, weights);
            first_moment += moment(x, weights);
        }
        tops[row] = top;
        lse[row] = (float)log(total);
        entropies[row] = (float)(log(total) - first_moment / total);
    }
}

INLINE int64_t first_target_of(int64_t row, const int64_t *target_rows, int64_t targets) {
    int64_t low = 0, high = targets;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (target_rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Overwrite logits by a loss's gradient with respect to them. The loss changes by `slopes` [targets] with the
   log-probability of each target (in ascending rows, several to a row or none), and by `entropy_slopes` [rows], where
   they are given, with a row's entropy. Both parts of a target meet before they are rounded. */
void into_gradient(Element *logits, int64_t rows, int64_t vocabulary, float temperature, const float *tops,
                   const float *lse, const float *entropies, const int64_t *target_rows, const int64_t *target_tokens,
                   const float *slopes, int64_t targets, const float *entropy_slopes, int64_t threads) {
#pragma omp parallel for if (rows > 1) num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t first = first_target_of(row, target_rows, targets);
        int64_t end = first;
        float slope = 0;
        while (end < targets && target_rows[end] == row) slope += slopes[end++];
        const float sum = lse[row], entropy = entropies[row], entropy_slope = entropy_slopes ? entropy_slopes[row] : 0;
        for (int64_t start = 0; start < vocabulary; start += BLOCK) {
            Element *own = logits + row * vocabulary + start;
            const int64_t count = least(BLOCK, vocabulary - start);
            float x[BLOCK], grad[BLOCK];
            tempered(own, count, tops[row], temperature, x);
            for (int i = 0; i < BLOCK; i++) {
                const float logprob = x[i] - sum, prob = weight_of(logprob);
                grad[i] = prob * (prob == 0.0f ? 0.0f : -slope - (logprob + entropy) * entropy_slope);
            }
            for (int64_t target = first; target < end; target++) {
                const int64_t place = target_tokens[target] - start;
                if (place >= 0 && place < count) grad[place] += slopes[target];
            }
            if (temperature != 1.0f)
                for (int i = 0; i < BLOCK; i++) grad[i] /= temperature;
            for (int64_t i = 0; i < count; i++) own[i] = rounded(grad[i]);
        }
    }
}

/* The first of `count` cumulative weights that exceeds *target, which becomes how far into its own it lies. */
INLINE int64_t located(const double *cumulative, int64_t count, double *target) {
    int64_t index = 0;
    *target = fmin(*target, cumulative[count - 1] * ALMOST_ONE);
    while (index < count - 1 && cumulative[index] <= *target) index++;
    *target -= index ? cumulative[index - 1] : 0;
    return index;
}

/* A token of each row: that whose share of the cumulative weights holds draws[row], in [0, 1), of their total, or where
   it is negative the most likely one, the first of several; and the token's log-probability, which is not a number
   where the row has none that can be sampled. sums is room for [threads, blocks of the vocabulary]. */
void draw(const Element *logits, int64_t rows, int64_t vocabulary, const float *temperatures, const double *draws,
          int64_t *tokens, float *logprobs, double *sums, int64_t threads) {
    const int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
#pragma omp parallel for if (rows > 1) num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const Element *own = logits + row * vocabulary;
        const float top = largest(own, vocabulary), temperature = temperatures[row];
        float x[BLOCK], weights[BLOCK];
        double *cumulative = sums + omp_get_thread_num() * blocks, total = 0, inside[BLOCK];
        for (int64_t block = 0; block < blocks; block++) {
            tempered(own + block * BLOCK, vocabulary - block * BLOCK, top, temperature, x);
            cumulative[block] = total += exponentiate(x, weights);
        }
        int64_t token = 0;
        if (draws[row] < 0) {
            while (token < vocabulary - 1 && widened(own[token]) != top) token++;
        } else {
            double rest = draws[row] * total;
            const int64_t start = located(cumulative, blocks, &rest) * BLOCK;
            tempered(own + start, vocabulary - start, top, temperature, x);
            exponentiate(x, weights);
            double sum = 0;
            for (int i = 0; i < BLOCK; i++) inside[i] = sum += weights[i];
            token = least(start + located(inside, BLOCK, &rest), vocabulary - 1);
        }
        const float logprob = (widened(own[token]) - top) / temperature - (float)log(total);
        tokens[row] = token;
        logprobs[row] = logprob > 0 ? 0 : logprob;
    }
}
