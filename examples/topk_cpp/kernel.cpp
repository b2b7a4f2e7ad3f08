// Values and indices of the k largest entries of each row, descending: x (batch, n) float32 → values (batch, k) float32,
// indices (batch, k) int64. Exact for every bit pattern, NaN included.
//
// How a row is done:
//   1. One pass over x keeps the maximum of every block of B neighbours: two SIMD operations per vector, no branch.
//   2. A bar that at least k block maxima reach is found by bisection. At least k entries reach it, so whatever lies
//      below it cannot be among the k largest, and a block whose maximum lies below it need not be read again.
//   3. The other blocks (about k of them) are read again, highest maximum first; entries that reach the bar are
//      collected. When the buffer is full it is cut to its k best and the bar rises to just above the worst of these.
//   4. The survivors (k and a few) are sorted.
//
// Everything is compared as integers. key() maps the bits of a float to an int32 in the same order, so denormals, infinities
// and neighbouring floats are told apart whatever the floating-point mode of the calling thread, and −0 sorts below +0,
// which is one of the orders that "−0 equals +0" allows. Ties go to the lower index, so the answer does not depend on threads.
//
// The vectors are compiler vector extensions, hence the same source serves AVX2, AVX-512, SSE2, NEON and SVE machines.

#include <algorithm>
#include <bit>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

// ── Keys and vectors ─────────────────────────────────────────────────────────────────────────────

constexpr int64_t LANES = 8;
using IntVec = int32_t __attribute__((vector_size(4 * LANES)));
using HalfVec = int32_t __attribute__((vector_size(2 * LANES)));
using UintVec = uint32_t __attribute__((vector_size(4 * LANES)));

// Order-preserving: a < b as floats implies key(a) < key(b). It is its own inverse.
inline int32_t key(int32_t bits) { return bits ^ ((bits >> 31) & INT_MAX); }
inline IntVec key(IntVec bits) { return bits ^ ((bits >> 31) & INT_MAX); }

// Rows start at any multiple of four bytes.
inline IntVec load(const int32_t *at) {
    IntVec v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

inline int32_t sum_of_lanes(IntVec v) {
    int32_t sum = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) sum += v[lane];
    return sum;
}

// One bit per lane whose mask is set.
inline uint32_t bits(IntVec mask) {
#ifdef __AVX2__
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
    return static_cast<uint32_t>(sum_of_lanes(mask & IntVec{1, 2, 4, 8, 16, 32, 64, 128}));
#endif
}

inline int32_t largest_lane(IntVec v) {
    HalfVec a, b;
    std::memcpy(&a, &v, sizeof a);
    std::memcpy(&b, reinterpret_cast<const char *>(&v) + sizeof a, sizeof b);
    a = a > b ? a : b;
    return std::max(std::max(a[0], a[1]), std::max(a[2], a[3]));
}

// The largest key of x[0..n). Of the raw bits, the signed maximum is right if any float has its sign bit clear, and else
// the unsigned minimum is: two operations per vector where computing each key would take four.
inline int32_t max_key(const int32_t *x, int64_t n) {
    constexpr int CHAINS = 4;  // independent, to hide the latency of a maximum
    IntVec high[CHAINS];
    UintVec low[CHAINS];
    for (int c = 0; c < CHAINS; ++c) {
        high[c] = IntVec{} + INT_MIN;
        low[c] = UintVec{} + UINT_MAX;
    }
    const auto take = [&](int c, const int32_t *at) {
        const IntVec v = load(at);
        const UintVec u = reinterpret_cast<UintVec>(v);
        high[c] = v > high[c] ? v : high[c];
        low[c] = u < low[c] ? u : low[c];
    };
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; ++c) take(c, x + i + c * LANES);
    for (; i + LANES <= n; i += LANES) take(0, x + i);
    IntVec best = IntVec{} + INT_MIN;
    for (int c = 0; c < CHAINS; ++c) {
        const IntVec lane = high[c] < 0 ? key(reinterpret_cast<IntVec>(low[c])) : high[c];
        best = lane > best ? lane : best;
    }
    int32_t largest = largest_lane(best);
    for (; i < n; ++i) largest = std::max(largest, key(x[i]));
    return largest;
}

// ── Candidates ───────────────────────────────────────────────────────────────────────────────────

// All 32 bits of the key above the complemented index: one compare orders by value, then by lower index.
using Candidate = int64_t;
inline Candidate pack(int32_t k, int64_t index) {
    return static_cast<Candidate>((static_cast<uint64_t>(static_cast<uint32_t>(k)) << 32) | (~index & 0xffffffff));
}
inline int32_t key_of(Candidate c) { return static_cast<int32_t>(c >> 32); }
inline int64_t index_of(Candidate c) { return ~c & 0xffffffff; }

// Up to this many, counting for each candidate how many are larger (a loop that vectorises) beats a sort's mispredictions.
constexpr int64_t RANK_SORT_MAX = 128;

// Writes the k largest of the m candidates (their order is free, m ≥ k) in descending order.
void emit(Candidate *found, int64_t m, int64_t k, const int32_t *x, int32_t *values, int64_t *indices) {
    const auto put = [&](int64_t rank, Candidate c) {
        indices[rank] = index_of(c);
        values[rank] = x[index_of(c)];
    };
    if (m > RANK_SORT_MAX) {
        std::partial_sort(found, found + k, found + m, std::greater<>());
        for (int64_t i = 0; i < k; ++i) put(i, found[i]);
        return;
    }
    int32_t keys[RANK_SORT_MAX];
    bool taken[RANK_SORT_MAX + 1] = {};
    const int64_t padded = (m + LANES - 1) / LANES * LANES;
    for (int64_t i = 0; i < m; ++i) keys[i] = key_of(found[i]);
    std::fill(keys + m, keys + padded, INT_MIN);  // larger than none
    for (int64_t i = 0; i < m; ++i) {
        IntVec larger{};
        for (int64_t j = 0; j < padded; j += LANES) larger -= load(keys + j) > keys[i];
        int64_t rank = sum_of_lanes(larger);
        while (taken[rank]) ++rank;  // equal ones take the places that follow
        taken[rank] = true;
        if (rank < k) put(rank, found[i]);
    }
}

// ── One row ──────────────────────────────────────────────────────────────────────────────────────

// Per thread, so that calls from several threads do not meet. Nothing in it outlives the row that wrote it.
struct Workspace {
    std::vector<int32_t> maxima;
    std::vector<int32_t> blocks;
    std::vector<Candidate> found;
};
thread_local Workspace workspace;

// About 4k blocks: fewer would let many blocks reach the bar by chance, more would cost time in the bisection.
// Returns 0 where k is so close to n that blocks cannot help.
int64_t block_size(int64_t n, int64_t k) {
    constexpr int64_t LEAST = 2 * LANES, MOST = 512;
    if (n < 2 * k * LEAST) return 0;
    const auto wanted = static_cast<uint64_t>(n / (4 * k));
    return std::clamp(static_cast<int64_t>(std::bit_floor(wanted | 1)), LEAST, MOST);
}

void find_maxima(const int32_t *x, int64_t n, int64_t block, int64_t first, int64_t last, int32_t *maxima) {
    const int64_t full = std::min(last, n / block);
    int64_t b = first;
    for (; b < full; ++b) maxima[b] = max_key(x + b * block, block);
    for (; b < last; ++b) maxima[b] = max_key(x + b * block, n - b * block);
}

// A bar that at least k of the maxima reach, and few more unless maxima are equal.
int32_t find_bar(const int32_t *maxima, int64_t count, int64_t k) {
    int32_t least = INT_MAX, most = INT_MIN;
    for (int64_t i = 0; i < count; ++i) {
        least = std::min(least, maxima[i]);
        most = std::max(most, maxima[i]);
    }
    if (k == 1) return most;
    int64_t low = least, high = int64_t{most} + 1;  // at least k reach low, fewer than k reach high
    while (high - low > 1) {
        const auto middle = static_cast<int32_t>((low + high) >> 1);
        int32_t reached = 0;
        for (int64_t i = 0; i < count; ++i) reached += maxima[i] >= middle;
        if (reached < k) {
            high = middle;
        } else {
            low = middle;
            if (reached <= k + k / 8) break;
        }
    }
    return static_cast<int32_t>(low);
}

// Collects entries that reach a bar; when full, keeps the k best and raises the bar above the worst of them.
class Collector {
  public:
    Collector(std::vector<Candidate> &buffer, int64_t k, int32_t bar) : k_(k), room_(2 * k + 64), bar_(bar) {
        buffer.resize(room_ + LANES);
        found_ = buffer.data();
    }

    // Entries `first` … `last` of the row; false when none can follow (nothing exceeds the largest key there is).
    bool scan(const int32_t *x, int64_t first, int64_t last) {
        int64_t i = first;
        for (; i + LANES <= last; i += LANES) {
            uint32_t reach = bits(key(load(x + i)) >= bar_);
            for (; reach != 0; reach &= reach - 1) add(x, i + std::countr_zero(reach));
            if (count_ >= room_ && !cut()) return false;
        }
        for (; i < last; ++i)
            if (key(x[i]) >= bar_) add(x, i);
        return count_ < room_ || cut();
    }

    int32_t bar() const { return bar_; }
    bool has_cut() const { return has_cut_; }
    Candidate *found() { return found_; }
    int64_t count() const { return count_; }

  private:
    void add(const int32_t *x, int64_t i) { found_[count_++] = pack(key(x[i]), i); }

    bool cut() {
        std::nth_element(found_, found_ + (k_ - 1), found_ + count_, std::greater<>());
        count_ = k_;
        has_cut_ = true;
        const int32_t worst = key_of(found_[k_ - 1]);
        if (worst == INT_MAX) return false;
        bar_ = worst + 1;
        return true;
    }

    Candidate *found_;
    int64_t count_ = 0, k_, room_;
    int32_t bar_;
    bool has_cut_ = false;
};

void select_from_blocks(const int32_t *x, int64_t n, int64_t k, int64_t block, int32_t *values, int64_t *indices) {
    auto &[maxima, blocks, found] = workspace;
    const auto blocks_in_all = static_cast<int64_t>(maxima.size());
    const int32_t bar = find_bar(maxima.data(), blocks_in_all, k);
    blocks.resize(blocks_in_all);
    int64_t chosen = 0;
    for (int64_t b = 0; b < blocks_in_all; ++b) {
        blocks[chosen] = static_cast<int32_t>(b);
        chosen += maxima[b] >= bar;
    }
    Collector collector(found, k, bar);
    bool sorted = false;
    for (int64_t c = 0; c < chosen; ++c) {
        const int64_t b = blocks[c];
        if (maxima[b] < collector.bar()) continue;
        if (!collector.scan(x, b * block, std::min(n, (b + 1) * block))) break;
        if (collector.has_cut() && !sorted) {
            // More winners side by side than chance would have it, as in sorted rows: the highest blocks first, then.
            std::sort(blocks.begin() + c + 1, blocks.begin() + chosen, [&](int32_t p, int32_t q) { return maxima[p] > maxima[q]; });
            sorted = true;
        }
    }
    emit(collector.found(), collector.count(), k, x, values, indices);
}

void select_from_all(const int32_t *x, int64_t n, int64_t k, int32_t *values, int64_t *indices) {
    auto &found = workspace.found;
    found.resize(n);
    for (int64_t i = 0; i < n; ++i) found[i] = pack(key(x[i]), i);
    emit(found.data(), n, k, x, values, indices);
}

void select_row(const int32_t *x, int64_t n, int64_t k, int32_t *values, int64_t *indices) {
    const int64_t block = block_size(n, k);
    if (block == 0) return select_from_all(x, n, k, values, indices);
    const int64_t blocks = (n + block - 1) / block;
    workspace.maxima.resize(blocks);
    find_maxima(x, n, block, 0, blocks, workspace.maxima.data());
    select_from_blocks(x, n, k, block, values, indices);
}

// ── Threads ──────────────────────────────────────────────────────────────────────────────────────

// Threads that sleep between calls. The caller works too and never waits for a sleeper to wake: it waits only for tasks
// that some thread has begun. Tasks are taken under the mutex, so a late sleeper finds nothing and sleeps on.
class Pool {
  public:
    static constexpr int MOST_THREADS = 16;

    Pool() {
        cpu_set_t mine;
        if (sched_getaffinity(0, sizeof mine, &mine) != 0) return;
        const int threads = std::min(CPU_COUNT(&mine), MOST_THREADS);
        try {
            for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
        } catch (const std::system_error &) {
            // A jail may allow no more threads: work with those there are.
        }
    }

    ~Pool() {
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        wake_.notify_all();
        for (auto &helper : helpers_) helper.join();
    }

    int threads() const { return static_cast<int>(helpers_.size()) + 1; }

    // Runs task(0) … task(count − 1); throws std::bad_alloc if one of them did. A second caller meanwhile works alone.
    void run(int64_t count, const std::function<void(int64_t)> &task) {
        std::unique_lock busy(one_caller_, std::try_to_lock);
        if (!busy || helpers_.empty()) {
            for (int64_t i = 0; i < count; ++i) task(i);
            return;
        }
        std::unique_lock lock(mutex_);
        task_ = &task;
        next_ = done_ = 0;
        count_ = count;
        lock.unlock();
        for (int64_t i = 1; i < std::min<int64_t>(count, threads()); ++i) wake_.notify_one();
        lock.lock();
        work(lock);
        all_done_.wait(lock, [&] { return done_ == count_; });
        count_ = next_ = done_ = 0;
        if (std::exchange(out_of_memory_, false)) throw std::bad_alloc();
    }

  private:
    void work(std::unique_lock<std::mutex> &lock) {
        while (next_ < count_) {
            const int64_t mine = next_++;
            const auto &task = *task_;
            lock.unlock();
            bool failed = false;
            try {
                task(mine);
            } catch (const std::bad_alloc &) {
                failed = true;
            }
            lock.lock();
            out_of_memory_ |= failed;
            if (++done_ == count_) all_done_.notify_one();
        }
    }

    void help() {
        std::unique_lock lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return closing_ || next_ < count_; });
            if (closing_) return;
            work(lock);
        }
    }

    std::vector<std::thread> helpers_;
    std::mutex one_caller_, mutex_;
    std::condition_variable wake_, all_done_;
    const std::function<void(int64_t)> *task_ = nullptr;
    int64_t next_ = 0, count_ = 0, done_ = 0;
    bool closing_ = false, out_of_memory_ = false;
};

// Made when first needed. A forked child has none of its parent's threads, so it forgets the pool and makes its own.
std::mutex pool_mutex;
std::unique_ptr<Pool> pool;

Pool &the_pool() {
    static const int registered = pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                                                 [] { static_cast<void>(pool.release()); pool_mutex.unlock(); });
    static_cast<void>(registered);
    const std::lock_guard lock(pool_mutex);
    if (!pool) pool = std::make_unique<Pool>();
    return *pool;
}

// Below this many floats in all, waking a thread (5 to 50 µs) costs more than it saves.
constexpr int64_t PARALLEL_FLOATS = 1 << 16;

void run(const int32_t *x, int64_t batch, int64_t n, int64_t k, int32_t *values, int64_t *indices) {
    const auto row = [&](int64_t b) { select_row(x + b * n, n, k, values + b * k, indices + b * k); };
    if (batch * n < PARALLEL_FLOATS) {
        for (int64_t b = 0; b < batch; ++b) row(b);
        return;
    }
    Pool &workers = the_pool();
    const int64_t block = block_size(n, k), threads = workers.threads();
    if (batch >= threads || block == 0 || n < PARALLEL_FLOATS) {
        // Rows in chunks, several per thread, so that a thread that wakes late does not hold up the rest.
        const int64_t chunks = std::min(batch, 4 * threads);
        workers.run(chunks, [&](int64_t c) {
            for (int64_t b = c * batch / chunks; b < (c + 1) * batch / chunks; ++b) row(b);
        });
        return;
    }
    // Few long rows: the pass over x is shared, the rest of the row is short.
    const int64_t blocks = (n + block - 1) / block, chunks = 4 * threads;
    for (int64_t b = 0; b < batch; ++b) {
        workspace.maxima.resize(blocks);
        int32_t *maxima = workspace.maxima.data();
        workers.run(chunks, [&](int64_t c) {
            find_maxima(x + b * n, n, block, c * blocks / chunks, (c + 1) * blocks / chunks, maxima);
        });
        select_from_blocks(x + b * n, n, k, block, values + b * k, indices + b * k);
    }
}

}  // namespace

// inputs: {x}; outputs: {values, indices}; shape: {batch, n, k}. Returns 0, 1 for a shape that it cannot serve, 2 for no memory.
extern "C" int topk(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t batch = shape[0], n = shape[1], k = shape[2];
    if (batch < 0 || k < 1 || n < k || n > INT_MAX) return 1;
    try {
        run(static_cast<const int32_t *>(inputs[0]), batch, n, k, static_cast<int32_t *>(outputs[0]),
            static_cast<int64_t *>(outputs[1]));
    } catch (const std::bad_alloc &) {
        return 2;
    }
    return 0;
}
