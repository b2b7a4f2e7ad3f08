/* Ceilings of the cores that this process may use: one line per measurement, `name best median repetitions`,
 * in bytes or operations per second (memory twice); `name - reason` for what this machine has but this program does not measure.
 *
 * usage: ceilings THREADS ARRAY_BYTES L1_BYTES L2_BYTES BUDGET_MS [CPU,CPU,...]
 * (arrays are shared out among the threads; the caches are those of one core; the budget is per measurement)
 *
 * Memory is written by the thread that uses it before anything is timed. Every repetition starts and ends at a
 * barrier, so a rate is that of all threads together and a slow thread counts.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#define MAX_REPETITIONS 4096
#define MIN_REPETITIONS 5
#define SLICES 8 /* a short repetition is less often interrupted; the slices together displace the caches */
#define HUGE_PAGE (2u << 20)
#define FMA_STEPS 100000
#define CACHE_STEP_BYTES (4u << 20)

typedef int64_t vint __attribute__((vector_size(WIDTH)));
typedef double vdouble __attribute__((vector_size(WIDTH)));
typedef float vfloat __attribute__((vector_size(WIDTH)));

struct part { /* what one thread works on; the arrays stay from one measurement to the next */
    char *arrays[3];
    char *a, *b, *c; /* where this repetition begins in each of them */
    size_t bytes;    /* of this repetition, per array */
    size_t passes;
    volatile double sink;
};

typedef double kernel(struct part *); /* returns the bytes or operations of one repetition */

static int threads;
static size_t array_bytes; /* of one thread */
static struct part *parts; /* one per thread */
static double budget_s;
static pthread_barrier_t barrier;
static volatile int stop;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void store(vint *to, vint value) { /* past the cache where the machine can */
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)to, (__m512i)value);
#elif defined(__AVX__)
    _mm256_stream_si256((__m256i *)to, (__m256i)value);
#elif defined(__SSE2__)
    _mm_stream_si128((__m128i *)to, (__m128i)value);
#else
    *to = value;
#endif
}

static double k_read(struct part *p) {
    vint s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    size_t n = p->bytes / WIDTH / 8 * 8;
    for (size_t pass = 0; pass < p->passes; pass++) {
        const vint *a = (const vint *)p->a;
        __asm__ volatile("" : "+r"(a) : : "memory"); /* every pass reads again */
        for (size_t i = 0; i < n; i += 8) {
            s0 ^= a[i], s1 ^= a[i + 1], s2 ^= a[i + 2], s3 ^= a[i + 3];
            s4 ^= a[i + 4], s5 ^= a[i + 5], s6 ^= a[i + 6], s7 ^= a[i + 7];
        }
    }
    s0 ^= s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7;
    p->sink = (double)s0[0];
    return (double)n * WIDTH * (double)p->passes;
}

static double k_copy(struct part *p) {
    const vint *a = (const vint *)p->a;
    vint *b = (vint *)p->b;
    size_t n = p->bytes / WIDTH;
    for (size_t i = 0; i < n; i++)
        store(b + i, a[i]);
    return 2.0 * (double)n * WIDTH;
}

static double k_triad(struct part *p) {
    const vdouble *b = (const vdouble *)p->b, *c = (const vdouble *)p->c;
    vint *a = (vint *)p->a;
    size_t n = p->bytes / WIDTH;
    for (size_t i = 0; i < n; i++)
        store(a + i, (vint)(b[i] + 3.0 * c[i]));
    return 3.0 * (double)n * WIDTH;
}

/* Twelve independent chains hide a latency of 4 to 6 cycles on two units and fit 16 registers. */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#define FMA_KERNEL(NAME, VECTOR, SCALAR)                                                                               \
    static double NAME(struct part *p) {                                                                               \
        volatile SCALAR source = (SCALAR)0.999;                                                                        \
        VECTOR m = {0}, c = {0};                                                                                       \
        m += source, c += source;                                                                                      \
        FMA_CHAINS_DECLARE(VECTOR)                                                                                     \
        for (int i = 0; i < FMA_STEPS; i++) {                                                                          \
            CHAINS(FMA_STEP)                                                                                           \
        }                                                                                                              \
        VECTOR sum = {0};                                                                                              \
        CHAINS(FMA_SUM)                                                                                                \
        p->sink = (double)sum[0];                                                                                      \
        return 2.0 * 12.0 * (double)FMA_STEPS * (double)(sizeof(VECTOR) / sizeof(SCALAR));                             \
    }
#define FMA_CHAINS_DECLARE(V)                                                                                          \
    V x0 = m, x1 = m + 1, x2 = m + 2, x3 = m + 3, x4 = m + 4, x5 = m + 5, x6 = m + 6, x7 = m + 7, x8 = m + 8,          \
      x9 = m + 9, x10 = m + 10, x11 = m + 11;
#define FMA_STEP(I) x##I = x##I * m + c;
#define FMA_SUM(I) sum += x##I;
FMA_KERNEL(k_fp32, vfloat, float)
FMA_KERNEL(k_fp64, vdouble, double)

/* int8: the widest multiply-add of the instruction set; 16-bit partial sums where it has no 32-bit ones, since that
 * is the most that a kernel can reach between two widenings. AMX is not measured here. */
#if defined(__AMX_INT8__) || defined(__AMX_TILE__)
#define INT8_UNKNOWN "this machine has matrix tiles (AMX), which are not measured"
#elif defined(__AVX512VNNI__) && defined(__AVX512F__)
#define INT8_VECTOR __m512i
#define INT8_OPS 128.0
#define INT8_SET(v) _mm512_set1_epi8((char)(v))
#define INT8_STEP(I) x##I = _mm512_dpbusd_epi32(x##I, a, b);
#elif defined(__AVXVNNI__)
#define INT8_VECTOR __m256i
#define INT8_OPS 64.0
#define INT8_SET(v) _mm256_set1_epi8((char)(v))
#define INT8_STEP(I) x##I = _mm256_dpbusd_avx_epi32(x##I, a, b);
#elif defined(__AVX2__)
#define INT8_VECTOR __m256i
#define INT8_OPS 64.0
#define INT8_SET(v) _mm256_set1_epi8((char)(v))
#define INT8_STEP(I) x##I = _mm256_add_epi16(x##I, _mm256_maddubs_epi16(x##I, b));
#elif defined(__ARM_FEATURE_DOTPROD)
#define INT8_VECTOR int32x4_t
#define INT8_OPS 32.0
#define INT8_SET(v) vdupq_n_s32(v)
#define INT8_STEP(I) x##I = vdotq_s32(x##I, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
#endif

#ifdef INT8_VECTOR
#define INT8_DECLARE(I) INT8_VECTOR x##I = INT8_SET(seed + I);
#define INT8_SINK(I)                                                                                                   \
    memcpy(&first, &x##I, sizeof first);                                                                               \
    total ^= first;
static double k_int8(struct part *p) {
    volatile int source = 3;
    int seed = source;
    INT8_VECTOR a = INT8_SET(seed), b = INT8_SET(seed + 1);
    (void)a;
    CHAINS(INT8_DECLARE)
    for (int i = 0; i < FMA_STEPS; i++) {
        CHAINS(INT8_STEP)
    }
    int total = 0, first;
    CHAINS(INT8_SINK)
    p->sink = total;
    return INT8_OPS * 12.0 * FMA_STEPS;
}
#endif

#if defined(__AMX_BF16__) || defined(__AMX_TILE__)
#define BF16_UNKNOWN "this machine has matrix tiles (AMX), which are not measured"
#elif defined(__AVX512BF16__)
#define BF16_DECLARE(I) __m512 x##I = _mm512_set1_ps(value + I);
#define BF16_STEP(I) x##I = _mm512_dpbf16_ps(x##I, a, a);
#define BF16_SUM(I) sum = _mm512_add_ps(sum, x##I);
static double k_bf16(struct part *p) {
    volatile float source = 0.999f;
    float value = source;
    __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(value), _mm512_set1_ps(value));
    CHAINS(BF16_DECLARE)
    for (int i = 0; i < FMA_STEPS; i++) {
        CHAINS(BF16_STEP)
    }
    __m512 sum = _mm512_setzero_ps();
    CHAINS(BF16_SUM)
    float first;
    memcpy(&first, &sum, sizeof first);
    p->sink = first;
    return 128.0 / 2.0 * 12.0 * FMA_STEPS;
}
#define HAS_BF16
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define BF16_UNKNOWN "this machine has bf16 vector arithmetic, which is not measured"
#endif

struct task {
    kernel *run;
    struct part *part;
    size_t bytes, passes, array;
    int index;
    double work;
    double *seconds; /* of each repetition; thread 0 writes */
    int *count;
};

static void take(struct part *part, size_t bytes) {
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    for (int i = 0; i < 3; i++) {
        if (posix_memalign((void **)&part->arrays[i], HUGE_PAGE, rounded))
            exit(3);
        madvise(part->arrays[i], rounded, MADV_HUGEPAGE); /* a refusal costs some bandwidth, nothing else */
        memset(part->arrays[i], 1, rounded);
    }
}

static void *work(void *argument) {
    struct task *task = argument;
    struct part *part = task->part;
    size_t slices = task->passes > 1 ? 1 : task->array / task->bytes; /* memory: each repetition takes the next slice */
    size_t slice = 0;
    if (!part->arrays[0])
        take(part, task->array);
    part->bytes = task->bytes, part->passes = task->passes;
    double begin = now();
    for (int timed = 0; !timed || !stop; timed = 1) { /* the first repetition warms, and is not counted */
        part->a = part->arrays[0] + slice * task->bytes;
        part->b = part->arrays[1] + slice * task->bytes;
        part->c = part->arrays[2] + slice * task->bytes;
        slice = (slice + 1) % slices;
        pthread_barrier_wait(&barrier);
        double t0 = now();
        task->work = task->run(part);
        pthread_barrier_wait(&barrier);
        if (task->index == 0 && timed) {
            double t1 = now();
            task->seconds[(*task->count)++] = t1 - t0;
            stop = *task->count >= MAX_REPETITIONS || (*task->count >= MIN_REPETITIONS && t1 - begin > budget_s);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void measure(const char *name, kernel *run, size_t bytes, size_t passes) {
    static double seconds[MAX_REPETITIONS];
    int count = 0;
    double total = 0;
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    struct task *tasks = calloc((size_t)threads, sizeof *tasks);
    if (!ids || !tasks)
        exit(3);
    stop = 0;
    for (int i = 0; i < threads; i++) {
        tasks[i] = (struct task){run, &parts[i], bytes, passes, array_bytes, i, 0, seconds, &count};
        if (pthread_create(&ids[i], NULL, work, &tasks[i]))
            exit(3);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        total += tasks[i].work;
    }
    qsort(seconds, (size_t)count, sizeof *seconds, ascending);
    printf("%s %.9e %.9e %d\n", name, total / seconds[0], total / seconds[count / 2], count);
    fflush(stdout);
    free(ids);
    free(tasks);
}

static size_t passes(size_t bytes) { return bytes < CACHE_STEP_BYTES ? CACHE_STEP_BYTES / bytes + 1 : 2; }

int main(int argc, char **argv) {
    if (argc < 6)
        return 2;
    threads = atoi(argv[1]);
    array_bytes = strtoull(argv[2], NULL, 10) / (size_t)threads / WIDTH / SLICES * WIDTH * SLICES;
    parts = calloc((size_t)threads, sizeof *parts);
    if (!parts || !array_bytes)
        return 3;
    size_t l1 = strtoull(argv[3], NULL, 10), l2 = strtoull(argv[4], NULL, 10);
    budget_s = 1e-3 * atof(argv[5]);
    if (argc > 6) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (char *cpu = strtok(argv[6], ","); cpu; cpu = strtok(NULL, ","))
            CPU_SET((size_t)atoi(cpu), &set);
        if (sched_setaffinity(0, sizeof set, &set))
            return 4;
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int visit = 0; visit < 2; visit++) { /* neighbours on the same memory come and go: look twice */
        measure("read", k_read, array_bytes / SLICES, 1);
        measure("copy", k_copy, array_bytes / SLICES, 1);
        measure("triad", k_triad, array_bytes / SLICES, 1);
        if (visit)
            break;
        measure("l1", k_read, l1 / 2, passes(l1 / 2)); /* half a cache: room for the stack and the rest */
        measure("l2", k_read, l2 / 2, passes(l2 / 2));
        measure("fp32", k_fp32, 0, 2);
        measure("fp64", k_fp64, 0, 2);
#ifdef INT8_VECTOR
    measure("int8", k_int8, 0, 2);
#elif defined(INT8_UNKNOWN)
    printf("int8 - %s\n", INT8_UNKNOWN);
#endif
#ifdef HAS_BF16
    measure("bf16", k_bf16, 0, 2);
#elif defined(BF16_UNKNOWN)
    printf("bf16 - %s\n", BF16_UNKNOWN);
#endif
#if defined(__AVX512FP16__) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    printf("fp16 - %s\n", "this machine has fp16 vector arithmetic, which is not measured");
#endif
    }
    return 0;
}
