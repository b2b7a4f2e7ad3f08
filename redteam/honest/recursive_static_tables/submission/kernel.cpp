// Quickselect by recursion on packed candidates; leaves of up to 16 are sorted by a fixed list of insertions.
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

// Filled by the first call and constant from then on: bounds of the leaf by depth of recursion.
const std::array<int, 64> &leaf_sizes() {
    static const std::array<int, 64> table = [] {
        std::array<int, 64> t{};
        for (int depth = 0; depth < 64; ++depth) t[depth] = depth < 8 ? 16 : 32;
        return t;
    }();
    return table;
}

constexpr int32_t FLIP[2] = {0, 0x7fffffff};

thread_local std::vector<int64_t> scratch;

void insertion(int64_t *first, int64_t *last) {
    for (int64_t *i = first + 1; i < last; ++i)
        for (int64_t *j = i; j > first && j[-1] < *j; --j) std::swap(j[-1], *j);
}

// Sorts the k largest of [first, last) to its front, in descending order.
void select(int64_t *first, int64_t *last, int64_t k, int depth) {
    if (k <= 0) return;
    if (last - first <= leaf_sizes()[depth < 63 ? depth : 63]) return insertion(first, last);
    int64_t a = first[0], b = first[(last - first) / 2], c = last[-1];
    if (a < b) std::swap(a, b);
    if (b < c) std::swap(b, c);
    if (a < b) std::swap(a, b);
    const int64_t pivot = b;  // median of three; candidates are distinct, so both sides shrink
    int64_t *i = first, *j = last - 1;
    while (i <= j) {
        while (*i > pivot) ++i;
        while (*j < pivot) --j;
        if (i <= j) std::swap(*i++, *j--);
    }
    select(first, j + 1, k < j + 1 - first ? k : j + 1 - first, depth + 1);
    select(i, last, k - (i - first), depth + 1);
}

}  // namespace

extern "C" int topk(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t batch = shape[0], n = shape[1], k = shape[2];
    scratch.resize(n);
    for (int64_t b = 0; b < batch; ++b) {
        const float *x = static_cast<const float *>(inputs[0]) + b * n;
        for (int64_t i = 0; i < n; ++i) {
            int32_t bits;
            std::memcpy(&bits, x + i, 4);
            scratch[i] = static_cast<int64_t>(bits ^ FLIP[bits < 0]) * (int64_t{1} << 32) + (0xffffffff - i);
        }
        select(scratch.data(), scratch.data() + n, k, 0);
        for (int64_t j = 0; j < k; ++j) {
            const int64_t i = 0xffffffff - (scratch[j] & 0xffffffff);
            static_cast<int64_t *>(outputs[1])[b * k + j] = i;
            static_cast<float *>(outputs[0])[b * k + j] = x[i];
        }
    }
    return 0;
}
