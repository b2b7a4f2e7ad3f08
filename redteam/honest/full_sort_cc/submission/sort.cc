// All of the row sorted, the first k kept.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

extern "C" void sort_rows(const float *x, int64_t batch, int64_t n, int64_t k, float *values, int64_t *indices) {
    std::vector<int64_t> order(n + PADDING);
    for (int64_t b = 0; b < batch; ++b) {
        const float *row = x + b * n;
        std::iota(order.begin(), order.end(), int64_t{0});
        std::stable_sort(order.begin(), order.begin() + n, [row](int64_t p, int64_t q) { return row[p] > row[q]; });
        for (int64_t j = 0; j < k; ++j) {
            indices[b * k + j] = order[j];
            values[b * k + j] = row[order[j]];
        }
    }
}
