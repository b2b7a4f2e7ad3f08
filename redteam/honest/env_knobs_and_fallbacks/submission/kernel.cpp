// Top-k of each row with a small heap: the least of the best k so far is on top.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

// Float order as signed integer order; every bit counts, so denormals and neighbours stay apart.
inline int64_t candidate(const float *x, int64_t i) {
    int32_t b;
    std::memcpy(&b, x + i, 4);
    b ^= (b >> 31) & 0x7fffffff;
    return static_cast<int64_t>(b) * (int64_t{1} << 32) + (0xffffffff - i);
}

void row(const float *x, int64_t n, int64_t k, float *values, int64_t *indices) {
    std::vector<int64_t> heap;
    heap.reserve(k + 1);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t c = candidate(x, i);
        if (static_cast<int64_t>(heap.size()) == k && c < heap.front()) continue;
        heap.push_back(c);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
        if (static_cast<int64_t>(heap.size()) > k) {
            std::pop_heap(heap.begin(), heap.end(), std::greater<>());
            heap.pop_back();
        }
    }
    std::sort(heap.begin(), heap.end(), std::greater<>());
    for (int64_t j = 0; j < k; ++j) {
        indices[j] = 0xffffffff - (heap[j] & 0xffffffff);
        values[j] = x[indices[j]];
    }
}

}  // namespace

extern "C" void select_rows(const float *x, int64_t batch, int64_t n, int64_t k, float *values, int64_t *indices) {
    for (int64_t b = 0; b < batch; ++b) row(x + b * n, n, k, values + b * k, indices + b * k);
}
