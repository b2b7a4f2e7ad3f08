// out[b, h] = Σ_t softmax_t(q[b, h] · k[t] / √D) · v[t] over the tokens of sequence b, which lie in pages of a common cache.
//
// How it is done:
//   1. A task is one sequence and one KV head, with all query heads that read it. Tasks are independent: threads share them
//      out. The first pass over the tokens computes scores, the second sums values; between them is an exact softmax.
//   2. Tokens come 16 at a time, looked up in the block table and widened to float once for all heads of the group (8 KB at
//      D = 128, in L1). Scores of 8 tokens are 8 sums over D, folded together; values meet up to four heads at once.
//   3. Everything is float32 until the result is rounded. Slots past the end of a sequence are never read.
//
// The vectors are compiler vector extensions, so the same source serves AVX2, AVX-512, SSE2 and NEON machines.

#include <algorithm>
#include <atomic>
#include <cmath>
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
constexpr int64_t TOKENS = 2 * LANES;
constexpr int64_t LINE = 32;  // numbers in a cache line
constexpr int MOST_THREADS = 16;
// Below this many products, starting a thread (20 to 50 µs) costs more than it saves.
constexpr int64_t PARALLEL_PRODUCTS = 4'000'000;

using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

// In a struct, since a template argument forgets the alignment of a bare vector.
struct Eight {
    Floats v;
};

// `width` numbers of a row, zeros after them.
Floats widen(const uint16_t *at, int64_t width) {
    Halves bits = {};
    if (width >= LANES)
        std::memcpy(&bits, at, sizeof bits);
    else
        std::memcpy(&bits, at, std::max<int64_t>(width, 0) * sizeof *at);
    return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
Halves to_bf16(Floats value) {
    const Words bits = reinterpret_cast<Words>(value);
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(value == value ? rounded : (bits >> 16 | 0x40), Halves);
}

// eˣ to about 2 units in the last place: x = n·ln 2 + r, a polynomial in r, n put into the exponent.
Floats exp_of(Floats x) {
    x = x > 87.0f ? Floats{} + 87.0f : x;
    x = x < -87.0f ? Floats{} - 87.0f : x;
    const Floats shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2²³: the low bits now hold round(x / ln 2)
    const Floats n = shifted - 12582912.0f;
    const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = Floats{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Ints power = (reinterpret_cast<Ints>(shifted) - 0x4B400000 + 127) << 23;
    return p * reinterpret_cast<Floats>(power);
}

// Lane j of the result is the sum over all lanes of s[j].
Floats fold(const Floats (&s)[LANES]) {
    Floats two[4], four[2];
    for (int i = 0; i < 4; ++i)
        two[i] = __builtin_shufflevector(s[2 * i], s[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(s[2 * i], s[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; ++i)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

struct Call {
    int64_t batch, heads, kv_heads, dim, longest, page, group, columns, blocks;
    const uint16_t *query, *cache;
    const int32_t *table, *lengths;
    uint16_t *out;

    int64_t vectors() const { return (dim + 2 * LANES - 1) / (2 * LANES) * 2; }  // of a row, an even number
};

// What one thread needs, for any task of a call.
struct Scratch {
    std::vector<Eight> query;   // (group, vectors)
    std::vector<Eight> tokens;  // (16, vectors): keys, then values
    std::vector<Eight> out;     // (group, vectors)
    std::vector<Eight> scores;  // (group, longest / 8)

    explicit Scratch(const Call &call)
        : query(call.group * call.vectors()), tokens(TOKENS * call.vectors()), out(call.group * call.vectors()),
          scores(call.group * stride(call)) {}

    static int64_t stride(const Call &call) { return (call.longest + TOKENS - 1) / TOKENS * 2; }
};

void widen_row(const uint16_t *row, int64_t dim, int64_t vectors, Eight *target) {
    for (int64_t d = 0; d < vectors; ++d) target[d].v = widen(row + d * LANES, dim - d * LANES);
}

// Keys (part 0) or values (part 1) of up to 16 tokens; zeros stand for tokens past the end. The next 16 are prefetched:
// pages lie in any order, which no hardware foresees.
void gather(const Call &call, int64_t b, int64_t kv, int64_t first, int64_t part, Eight *target) {
    const int64_t vectors = call.vectors(), length = call.lengths[b], count = std::min(TOKENS, length - first);
    const auto row = [&](int64_t t) {
        const int64_t page = call.table[b * call.columns + t / call.page];
        return call.cache + (2 * ((page * call.page + t % call.page) * call.kv_heads + kv) + part) * call.dim;
    };
    for (int64_t j = 0; j < count; ++j) {
        if (const int64_t t = first + j + TOKENS; t < length)
            for (int64_t d = 0; d < call.dim; d += LINE) __builtin_prefetch(row(t) + d);
        widen_row(row(first + j), call.dim, vectors, target + j * vectors);
    }
    std::fill(target + count * vectors, target + TOKENS * vectors, Eight{});
}

Floats dots(const Eight *query, const Eight *keys, int64_t vectors) {
    Floats sum[LANES] = {};
    for (int64_t d = 0; d < vectors; ++d)
        for (int64_t j = 0; j < LANES; ++j) sum[j] += query[d].v * keys[j * vectors + d].v;
    return fold(sum);
}

// out (R, vectors) += p (R, 16) · values (16, vectors); rows of p are `stride` floats apart.
template <int64_t R>
void weigh(const float *p, int64_t stride, const Eight *values, int64_t vectors, Eight *out) {
    for (int64_t d = 0; d < vectors; d += 2) {
        Floats sum[R][2];
        for (int64_t r = 0; r < R; ++r)
            for (int64_t v = 0; v < 2; ++v) sum[r][v] = out[r * vectors + d + v].v;
        for (int64_t t = 0; t < TOKENS; ++t)
            for (int64_t r = 0; r < R; ++r)
                for (int64_t v = 0; v < 2; ++v) sum[r][v] += values[t * vectors + d + v].v * p[r * stride + t];
        for (int64_t r = 0; r < R; ++r)
            for (int64_t v = 0; v < 2; ++v) out[r * vectors + d + v].v = sum[r][v];
    }
}

// Scores of one head become probabilities that lack the division by their sum, which is returned.
float softmax(Eight *scores, int64_t length) {
    const int64_t vectors = (length + TOKENS - 1) / TOKENS * 2;
    float *row = reinterpret_cast<float *>(scores);
    std::fill(row + length, row + vectors * LANES, -std::numeric_limits<float>::infinity());
    Floats top = scores[0].v;
    for (int64_t i = 1; i < vectors; ++i) top = scores[i].v > top ? scores[i].v : top;
    float highest = top[0];
    for (int64_t lane = 1; lane < LANES; ++lane) highest = std::max(highest, top[lane]);
    for (int64_t i = 0; i < vectors; ++i) scores[i].v = exp_of(scores[i].v - highest);
    std::fill(row + length, row + vectors * LANES, 0.0f);  // exp_of has a least result above zero
    Floats sums = {};
    for (int64_t i = 0; i < vectors; ++i) sums += scores[i].v;
    float sum = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) sum += sums[lane];
    return sum;
}

void do_task(const Call &call, int64_t b, int64_t kv, Scratch &s) {
    const int64_t vectors = call.vectors(), stride = Scratch::stride(call), length = call.lengths[b];
    const int64_t first_head = b * call.heads + kv * call.group;
    const float scale = 1.0f / std::sqrt(static_cast<float>(call.dim));
    for (int64_t g = 0; g < call.group; ++g)
        widen_row(call.query + (first_head + g) * call.dim, call.dim, vectors, &s.query[g * vectors]);
    for (int64_t t = 0; t < length; t += TOKENS) {
        gather(call, b, kv, t, 0, s.tokens.data());
        for (int64_t g = 0; g < call.group; ++g)
            for (int64_t half = 0; half < 2; ++half)
                s.scores[g * stride + t / LANES + half].v =
                    scale * dots(&s.query[g * vectors], &s.tokens[half * LANES * vectors], vectors);
    }
    std::vector<float> sums(call.group);
    for (int64_t g = 0; g < call.group; ++g) sums[g] = softmax(&s.scores[g * stride], length);
    std::fill(s.out.begin(), s.out.end(), Eight{});
    for (int64_t t = 0; t < length; t += TOKENS) {
        gather(call, b, kv, t, 1, s.tokens.data());
        int64_t g = 0;
        const auto block = [&](auto heads) {
            for (; g + heads <= call.group; g += heads)
                weigh<heads>(reinterpret_cast<const float *>(&s.scores[g * stride + t / LANES]), stride * LANES,
                             s.tokens.data(), vectors, &s.out[g * vectors]);
        };
        block(std::integral_constant<int64_t, 4>{});
        block(std::integral_constant<int64_t, 2>{});
        block(std::integral_constant<int64_t, 1>{});
    }
    for (int64_t g = 0; g < call.group; ++g)
        for (int64_t d = 0; d < call.dim; d += LANES) {
            const Halves y = to_bf16(s.out[g * vectors + d / LANES].v / sums[g]);
            uint16_t *target = call.out + (first_head + g) * call.dim + d;
            std::memcpy(target, &y, std::min(LANES, call.dim - d) * sizeof *target);
        }
}

// Nothing outside the cache is read, whatever the table and the lengths hold.
bool in_bounds(const Call &call) {
    for (int64_t b = 0; b < call.batch; ++b) {
        const int64_t length = call.lengths[b];
        if (length < 1 || length > call.longest) return false;
        for (int64_t column = 0; column * call.page < length; ++column) {
            const int64_t page = call.table[b * call.columns + column];
            if (page < 0 || page >= call.blocks) return false;
        }
    }
    return true;
}

int threads_for(const Call &call, int64_t tasks) {
    if (2 * call.batch * call.heads * call.dim * call.longest < PARALLEL_PRODUCTS) return 1;
    cpu_set_t mine;
    const int cpus = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return static_cast<int>(std::min<int64_t>(tasks, std::min(cpus, MOST_THREADS)));
}

}  // namespace

// shape: batch, num_heads, num_kv_heads, head_dim, seq_len, page_size. Returns 1 for a shape, 2 for a content it refuses.
extern "C" int paged_attention(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    if (*std::min_element(shape, shape + 6) < 1 || shape[1] % shape[2] != 0) return 1;
    const int64_t columns = (shape[4] + shape[5] - 1) / shape[5];
    const Call call{shape[0],
                    shape[1],
                    shape[2],
                    shape[3],
                    shape[4],
                    shape[5],
                    shape[1] / shape[2],
                    columns,
                    std::max<int64_t>(shape[0] * columns + 8, 64),  // the problem's own rule for the size of the cache
                    static_cast<const uint16_t *>(inputs[0]),
                    static_cast<const uint16_t *>(inputs[1]),
                    static_cast<const int32_t *>(inputs[2]),
                    static_cast<const int32_t *>(inputs[3]),
                    static_cast<uint16_t *>(outputs[0])};
    if (!in_bounds(call)) return 2;
    const int64_t tasks = call.batch * call.kv_heads;
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        Scratch scratch(call);
        for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
            do_task(call, t / call.kv_heads, t % call.kv_heads, scratch);
    };
    std::vector<std::thread> helpers;
    try {
        for (int n = threads_for(call, tasks); n > 1; --n) helpers.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads are to be had: those that there are do the rest.
    }
    work();
    for (std::thread &helper : helpers) helper.join();
    return 0;
}
