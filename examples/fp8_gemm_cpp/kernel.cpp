// y = (x · Wᵀ) · s: x (M, K) and W (N, K) e4m3, s (N) float32, y (M, N) bfloat16.
//
// How it is done:
//   1. x is decoded to float once per call. A task is up to 192 rows of x and 64 columns of y; tasks are independent:
//      threads share them out.
//   2. Of a task's weights, 256 elements of K at a time are decoded through a table of 256 floats and transposed on the way,
//      16 columns side by side: 16 KB, in L1. They meet blocks of up to six rows; 6 · 2 accumulators, two weights and a
//      broadcast fit 16 registers.
//   3. Products of e4m3 numbers are exact in float32; the sum is float32, scaled at the end and rounded once.
//
// The vectors are compiler vector extensions, so the same source serves AVX2, AVX-512, SSE2 and NEON machines.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include <sched.h>

namespace {

constexpr int64_t LANES = 8;
constexpr int64_t TILE = 2 * LANES;
constexpr int64_t TILES = 4;
constexpr int64_t COLUMNS = TILES * TILE;
constexpr int64_t DEPTH = 256;
constexpr int64_t BLOCK = 6;
constexpr int64_t ROWS = 32 * BLOCK;
constexpr int MOST_THREADS = 16;
// Below this many products, starting a thread (20 to 50 µs) costs more than it saves.
constexpr int64_t PARALLEL_PRODUCTS = 4'000'000;

using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

template <class V>
V load(const void *at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

// Round to nearest, ties to even; NaN stays NaN.
Halves to_bf16(Floats value) {
    const Words bits = reinterpret_cast<Words>(value);
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(value == value ? rounded : (bits >> 16 | 0x40), Halves);
}

// The finite variant of e4m3: bias 7, subnormals, no infinity, NaN where all bits but the sign are ones.
constexpr std::array<float, 256> e4m3_table() {
    std::array<float, 256> table{};
    for (int bits = 0; bits < 256; ++bits) {
        const int exponent = bits >> 3 & 15, fraction = bits & 7;
        float value = static_cast<float>(exponent == 0 ? fraction : 8 + fraction) / 512;  // 2⁻⁹, the least subnormal
        for (int e = 1; e < exponent; ++e) value *= 2;
        if ((bits & 0x7F) == 0x7F) value = std::numeric_limits<float>::quiet_NaN();
        table[bits] = bits & 0x80 ? -value : value;
    }
    return table;
}

constexpr std::array<float, 256> E4M3 = e4m3_table();

struct Call {
    int64_t m, n, k;
    const uint8_t *weight;
    const float *scale;
    uint16_t *y;
    int64_t stride;        // of rows of x in floats
    std::vector<float> x;  // (M, stride)
};

// `depth` elements of the rows of W that are one tile's columns: w (depth, 16), zeros for columns past the end.
void decode_weights(const Call &call, int64_t column, int64_t first, int64_t depth, float *w) {
    const int64_t columns = std::min(TILE, call.n - column);
    for (int64_t c = 0; c < columns; ++c) {
        const uint8_t *row = call.weight + (column + c) * call.k + first;
        for (int64_t k = 0; k < depth; ++k) w[k * TILE + c] = E4M3[row[k]];
    }
    for (int64_t k = 0; k < depth && columns < TILE; ++k) std::fill(w + k * TILE + columns, w + (k + 1) * TILE, 0.0f);
}

// total (R, 16) += x (R, depth) · w (depth, 16); in the first step of K total is not read.
template <int64_t R>
void multiply(const float *x, int64_t stride, const float *w, int64_t depth, bool fresh, float *total) {
    Floats sum[R][2] = {};
    if (!fresh)
        for (int64_t r = 0; r < R; ++r)
            for (int64_t v = 0; v < 2; ++v) sum[r][v] = load<Floats>(total + r * COLUMNS + v * LANES);
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t r = 0; r < R; ++r)
            for (int64_t v = 0; v < 2; ++v) sum[r][v] += load<Floats>(w + k * TILE + v * LANES) * x[r * stride + k];
    for (int64_t r = 0; r < R; ++r)
        for (int64_t v = 0; v < 2; ++v) std::memcpy(total + r * COLUMNS + v * LANES, &sum[r][v], sizeof sum[r][v]);
}

void multiply_rows(const float *x, int64_t stride, const float *w, int64_t rows, int64_t depth, bool fresh, float *total) {
    int64_t r = 0;
    const auto block = [&](auto count) {
        for (; r + count <= rows; r += count)
            multiply<count>(x + r * stride, stride, w, depth, fresh, total + r * COLUMNS);
    };
    block(std::integral_constant<int64_t, BLOCK>{});
    block(std::integral_constant<int64_t, 4>{});
    block(std::integral_constant<int64_t, 2>{});
    block(std::integral_constant<int64_t, 1>{});
}

void do_task(const Call &call, int64_t row, int64_t column) {
    const int64_t rows = std::min(ROWS, call.m - row), columns = std::min(COLUMNS, call.n - column);
    alignas(64) float w[DEPTH * TILE], total[ROWS * COLUMNS];
    for (int64_t first = 0; first < call.k; first += DEPTH) {
        const int64_t depth = std::min(DEPTH, call.k - first);
        for (int64_t at = 0; at < columns; at += TILE) {
            decode_weights(call, column + at, first, depth, w);
            multiply_rows(&call.x[row * call.stride + first], call.stride, w, rows, depth, first == 0, total + at);
        }
    }
    for (int64_t at = 0; at < columns; at += LANES) {
        const int64_t width = std::min(LANES, columns - at);
        Floats scale = {};
        std::memcpy(&scale, call.scale + column + at, width * sizeof *call.scale);
        for (int64_t r = 0; r < rows; ++r) {
            const Halves y = to_bf16(load<Floats>(total + r * COLUMNS + at) * scale);
            std::memcpy(call.y + (row + r) * call.n + column + at, &y, width * sizeof *call.y);
        }
    }
}

int threads_for(const Call &call, int64_t tasks) {
    if (call.m * call.n * call.k < PARALLEL_PRODUCTS) return 1;
    cpu_set_t mine;
    const int cpus = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return static_cast<int>(std::min<int64_t>(tasks, std::min(cpus, MOST_THREADS)));
}

}  // namespace

extern "C" int fp8_gemm(const uint8_t *x, const uint8_t *weight, const float *scale, uint16_t *y, int64_t m, int64_t n,
                        int64_t k) {
    if (m < 0 || n < 0 || k < 1) return 1;
    // A line more than K: rows whose distance is a power of two would all fall into the same set of L1.
    const int64_t stride = (k + 15) / 16 * 16 + 16;
    Call call{m, n, k, weight, scale, y, stride, std::vector<float>(m * stride)};
    for (int64_t row = 0; row < m; ++row)
        for (int64_t i = 0; i < k; ++i) call.x[row * stride + i] = E4M3[x[row * k + i]];
    const int64_t panels = (n + COLUMNS - 1) / COLUMNS, blocks = (m + ROWS - 1) / ROWS, tasks = panels * blocks;
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
            do_task(call, t / panels * ROWS, t % panels * COLUMNS);
    };
    std::vector<std::thread> helpers;
    try {
        for (int i = threads_for(call, tasks); i > 1; --i) helpers.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads are to be had: those that there are do the rest.
    }
    work();
    for (std::thread &helper : helpers) helper.join();
    return 0;
}
