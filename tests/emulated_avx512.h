/* The instructions of AVX512 and AMX that the compiled sources use, for a processor that has AVX2 alone. gcc includes this
   file before a source of astune (-include). Results are those of Intel's manual to the last bit: products of bfloat16
   take denormal numbers as zero, and are added one after the other. */

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef float Floats16 __attribute__((vector_size(64)));
typedef int32_t Ints16 __attribute__((vector_size(64)));
typedef int8_t Bytes64 __attribute__((vector_size(64)));
typedef uint8_t Unsigned64 __attribute__((vector_size(64)));
typedef int16_t Shorts32 __attribute__((vector_size(64)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef int8_t Bytes32 __attribute__((vector_size(32)));
typedef int8_t Bytes16 __attribute__((vector_size(16)));

/* A function of its own for each instruction, so that unrolled loops stay small. */
#define EMULATED static __attribute__((noinline, unused, optimize("O3")))
#define EACH(n) for (int i = 0; i < n; i++)
#define FLOATS(name, arguments, value) \
    EMULATED __m512 name arguments { Floats16 y; EACH(16) y[i] = value; return (__m512)y; }
#define INTS(name, arguments, value) \
    EMULATED __m512i name arguments { Ints16 y; EACH(16) y[i] = value; return (__m512i)y; }
#define F(x) ((Floats16)x)[i]
#define I(x) ((Ints16)x)[i]

/* Denormal numbers as zero. */
EMULATED Floats16 normal(Floats16 x) {
    const Ints16 bits = (Ints16)x, is_normal = (bits & 0x7f800000) != 0;
    return (Floats16)(bits & (is_normal | (int)0x80000000));
}

/* a * b + c, rounded once, by AVX2. */
EMULATED __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    union { __m512 all; __m256 half[2]; } x = {a}, y = {b}, z = {c}, sum;
    EACH(2) sum.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    return sum.all;
}

/* sum + a * b for the upper or the lower number of bfloat16 in each word. */
EMULATED Floats16 plus_products(Floats16 sum, Ints16 a, Ints16 b, int upper) {
    const Ints16 left = upper ? a & (int)0xffff0000 : a << 16, right = upper ? b & (int)0xffff0000 : b << 16;
    return normal((Floats16)fmadd_ps((__m512)normal((Floats16)left), (__m512)normal((Floats16)right), (__m512)normal(sum)));
}

static float power_of_two_times(float x, float n) { return n != n ? n : scalbnf(x, (int)floorf(fminf(fmaxf(n, -999), 999))); }

FLOATS(set1_ps, (float x), x)
FLOATS(max_ps, (__m512 a, __m512 b), F(a) > F(b) ? F(a) : F(b))
FLOATS(abs_ps, (__m512 a), fabsf(F(a)))
FLOATS(nearest_ps, (__m512 a), rintf(F(a)))
FLOATS(scalef_ps, (__m512 a, __m512 n), power_of_two_times(F(a), F(n)))
FLOATS(cvtepi32_ps, (__m512i a), I(a))
INTS(set1_epi32, (int x), x)
INTS(min_epi32, (__m512i a, __m512i b), I(a) < I(b) ? I(a) : I(b))
INTS(max_epi32, (__m512i a, __m512i b), I(a) > I(b) ? I(a) : I(b))
INTS(cvtps_epi32, (__m512 a), _mm_cvtss_si32(_mm_set_ss(F(a))))
INTS(cvtepu16_epi32, (__m256i a), ((Halves16)a)[i])
INTS(madd_epi16, (__m512i a, __m512i b),
     ((Shorts32)a)[2 * i] * ((Shorts32)b)[2 * i] + ((Shorts32)a)[2 * i + 1] * ((Shorts32)b)[2 * i + 1])

EMULATED float reduce_max_ps(__m512 a) { float y = ((Floats16)a)[0]; EACH(16) y = F(a) > y ? F(a) : y; return y; }
EMULATED int reduce_add_epi32(__m512i a) { int y = 0; EACH(16) y += I(a); return y; }
EMULATED __mmask16 unordered(__m512 a, __m512 b) { int y = 0; EACH(16) y |= (F(a) != F(a) || F(b) != F(b)) << i; return y; }
EMULATED __m128i cvtepi32_epi8(__m512i a) { Bytes16 y; EACH(16) y[i] = I(a); return (__m128i)y; }
EMULATED __m512i cvtepi8_epi16(__m256i a) { Shorts32 y; EACH(32) y[i] = ((Bytes32)a)[i]; return (__m512i)y; }

EMULATED __m256bh cvtneps_pbh(__m512 a) {
    const Ints16 x = (Ints16)normal((Floats16)a), is_nan = (x & 0x7fffffff) > 0x7f800000;
    const Ints16 nearest = x + 0x7fff + (x >> 16 & 1);
    return (__m256bh)__builtin_convertvector(((is_nan & (x | 0x400000)) | (~is_nan & nearest)) >> 16, Halves16);
}

EMULATED __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    Ints16 y = (Ints16)sum;
    EACH(64) y[i / 4] += ((Unsigned64)a)[i] * ((Bytes64)b)[i];
    return (__m512i)y;
}

EMULATED __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    const Floats16 uppers = plus_products((Floats16)sum, (Ints16)a, (Ints16)b, 1);
    return (__m512)plus_products(uppers, (Ints16)a, (Ints16)b, 0);
}

EMULATED __m512i loaded_bytes(const void *x) { __m512i y; memcpy(&y, x, 64); return y; }
EMULATED __m512 loaded_aligned(const void *x) { if ((uintptr_t)x % 64) __builtin_trap(); return (__m512)loaded_bytes(x); }
EMULATED void store_bytes(void *y, __m512i x) { memcpy(y, &x, 64); }
EMULATED __m256i load_some(__mmask16 mask, const uint16_t *x) { Halves16 y; EACH(16) y[i] = mask >> i & 1 ? x[i] : 0; return (__m256i)y; }
EMULATED void store_some(uint16_t *y, __mmask16 mask, __m256i x) { EACH(16) if (mask >> i & 1) y[i] = ((Halves16)x)[i]; }

#undef _mm512_roundscale_ps /* gcc's are macros where it does not optimise, and some always */
#undef _mm512_slli_epi32
#undef _mm512_cmp_ps_mask
#define _mm512_set1_ps set1_ps
#define _mm512_setzero_ps() ((__m512)(Floats16){0})
#define _mm512_add_ps(a, b) ((__m512)((Floats16)(a) + (Floats16)(b)))
#define _mm512_sub_ps(a, b) ((__m512)((Floats16)(a) - (Floats16)(b)))
#define _mm512_mul_ps(a, b) ((__m512)((Floats16)(a) * (Floats16)(b)))
#define _mm512_div_ps(a, b) ((__m512)((Floats16)(a) / (Floats16)(b)))
#define _mm512_fmadd_ps fmadd_ps
#define _mm512_fnmadd_ps(a, b, c) fmadd_ps((__m512)-(Floats16)(a), b, c)
#define _mm512_max_ps max_ps
#define _mm512_abs_ps abs_ps
#define _mm512_roundscale_ps(a, places) nearest_ps(a)
#define _mm512_scalef_ps scalef_ps
#define _mm512_cvtss_f32(a) (((Floats16)(a))[0])
#define _mm512_cvtepi32_ps cvtepi32_ps
#define _mm512_cvtps_epi32 cvtps_epi32
#define _mm512_cvtepi32_epi8 cvtepi32_epi8
#define _mm512_cvtepi8_epi16 cvtepi8_epi16
#define _mm512_cvtepu16_epi32 cvtepu16_epi32
#define _mm512_cvtneps_pbh cvtneps_pbh
#define _mm512_castsi512_ps(a) ((__m512)(a))
#define _mm512_set1_epi32 set1_epi32
#define _mm512_setzero_si512() ((__m512i)(Ints16){0})
#define _mm512_add_epi32(a, b) ((__m512i)((Ints16)(a) + (Ints16)(b)))
#define _mm512_or_si512(a, b) ((__m512i)((Ints16)(a) | (Ints16)(b)))
#define _mm512_slli_epi32(a, places) ((__m512i)((Ints16)(a) << (places)))
#define _mm512_min_epi32 min_epi32
#define _mm512_max_epi32 max_epi32
#define _mm512_madd_epi16 madd_epi16
#define _mm512_dpbusd_epi32 dpbusd_epi32
#define _mm512_dpbf16_ps dpbf16_ps
#define _mm512_reduce_max_ps reduce_max_ps
#define _mm512_reduce_add_epi32 reduce_add_epi32
#define _mm512_cmp_ps_mask(a, b, relation) unordered(a, b) /* the only relation that is asked for */
#define _mm512_load_ps loaded_aligned
#define _mm512_loadu_ps(x) ((__m512)loaded_bytes(x))
#define _mm512_loadu_si512 loaded_bytes
#define _mm512_storeu_si512 store_bytes
#define _mm256_maskz_loadu_epi16 load_some
#define _mm256_mask_storeu_epi16 store_some

#define __AVX512F__ 1
#define __AVX512BW__ 1

#ifdef EMULATE_AMX
#define TILES 8

/* What _tile_loadconfig reads, and the registers of a thread. */
typedef struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } Shape;
typedef union { uint8_t bytes[16][64]; Ints16 words[16]; Floats16 floats[16]; } Tile;
static _Thread_local Shape shape_of;
static _Thread_local Tile tile_of[TILES];

static void require(int fits) { if (!fits) __builtin_trap(); }

EMULATED void configure(const void *shape) {
    memcpy(&shape_of, shape, sizeof shape_of);
    memset(tile_of, 0, sizeof tile_of);
    require(shape_of.palette == 1);
    EACH(TILES) require(shape_of.rows[i] <= 16 && shape_of.bytes[i] <= 64);
}

EMULATED void clear(int tile) {
    require(shape_of.rows[tile]);
    memset(&tile_of[tile], 0, sizeof *tile_of);
}

EMULATED void load_tile(int tile, const void *x, int64_t stride) {
    clear(tile);
    EACH(shape_of.rows[tile]) memcpy(tile_of[tile].bytes[i], (const char *)x + i * stride, shape_of.bytes[tile]);
}

EMULATED void store_tile(int tile, void *y, int64_t stride) {
    require(shape_of.rows[tile]);
    EACH(shape_of.rows[tile]) memcpy((char *)y + i * stride, tile_of[tile].bytes[i], shape_of.bytes[tile]);
}

EMULATED void multiply_tile(int sums, int a, int b) {
    const int rows = shape_of.rows[a], pairs = shape_of.bytes[a] / 4;
    require(rows && pairs == shape_of.rows[b] && rows == shape_of.rows[sums] && shape_of.bytes[sums] == shape_of.bytes[b]);
    for (int row = 0; row < rows; row++) {
        Floats16 lower = {0}, upper = {0}, *out = &tile_of[sums].floats[row];
        for (int pair = 0; pair < pairs; pair++) {
            const Ints16 left = tile_of[a].words[row][pair] - (Ints16){0};
            lower = plus_products(lower, left, tile_of[b].words[pair], 0);
            upper = plus_products(upper, left, tile_of[b].words[pair], 1);
        }
        *out = normal(normal(*out) + normal(lower + upper));
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig configure
#define _tile_release() (shape_of = (Shape){0})
#define _tile_zero clear
#define _tile_loadd load_tile
#define _tile_stored store_tile
#define _tile_dpbf16ps multiply_tile
#define syscall(...) 0 /* Linux gives the registers */
#define __AMX_BF16__ 1
#endif

#undef EMULATED
#undef EACH
#undef FLOATS
#undef INTS
#undef TILES
#undef F
#undef I
