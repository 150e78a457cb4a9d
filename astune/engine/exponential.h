/* The exponential function in float32, in operations that a compiler turns into vectors; after element.h. */

#pragma once

#include <math.h>

/* e^(x - n log(2)), by the coefficients of Cephes' expf. */
INLINE float exp_of_rest(float x, float n) {
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}

/* e^x for x <= 0; not a number stays one. */
INLINE float exp_of_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float n = rintf(x * 1.44269504f);
    union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
    return exp_of_rest(x, n) * power.value;
}
