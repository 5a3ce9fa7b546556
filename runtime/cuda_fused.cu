/* cuda_fused.cu - FUSED and ROTARY: a chain of element-wise kernels as one, which reads each input once.
 *
 * FUSED interprets its program, a few elements a thread side by side, so that finding out what a step does costs little beside
 * doing it. The values lie in shared memory, a column for each thread; what a step computed stays in registers for the next
 * one. All threads take the same way. This file is compiled without contraction of a*b+c, as the single kernels are: a
 * program gives their bits. */
#include "runtime/cuda_common.cuh"

#define T       float
#define F(name) name##_f32
#define M(name) name##f
#include "runtime/host_scalar.inc"
#undef T
#undef F
#undef M

#define T       double
#define F(name) name##_f64
#define M(name) name
#include "runtime/host_scalar.inc"
#undef T
#undef F
#undef M

namespace
{

/* ---- FUSED ------------------------------------------------------------------------------------------------------ */

constexpr int FUSED_THREADS = 128;
constexpr int VALUES = FERRY_PROGRAM_INPUTS + FERRY_PROGRAM_STEPS;

/* How an input is read: N neighbours in one access, one number for all N, or N numbers one by one. */
enum Reading { NOT_READ, PACKED, SAME, SINGLE };

template <typename I> struct Input {
    const void *at;
    ferry_dtype type;
    Reading reading;
    I stride[FERRY_MAX_RANK];
};

struct Output {
    void *at;
    ferry_dtype type;
    int slot;
};

/* Operands as slots: inputs that there are, then steps. */
struct Instruction {
    ferry_op op;
    ferry_fn fn;
    int a, b, c, slot;
    bool keep; /* it is read by more than the next step */
    double alpha;
};

template <typename I> struct Program {
    int rank, inputs, steps;
    I packs;               /* of N elements */
    I dim[FERRY_MAX_RANK]; /* the last one in packs */
    Input<I> input[FERRY_PROGRAM_INPUTS];
    Output output[FERRY_PROGRAM_OUTPUTS];
    Instruction step[FERRY_PROGRAM_STEPS];
    bool accumulate;
};

template <typename E, int N> struct alignas(sizeof(E) * N) Side {
    E at[N];
};

template <typename W, int N> struct alignas(sizeof(W) * N) Row {
    W at[N];
};

template <typename E, int N, typename I> __device__ Side<E, N> load_side(const Input<I> &x, int64_t at, int64_t step)
{
    const E *from = static_cast<const E *>(x.at) + at;
    Side<E, N> s;
    if (x.reading == PACKED) {
        s = *reinterpret_cast<const Side<E, N> *>(from);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            s.at[e] = from[x.reading == SAME ? 0 : e * step];
        }
    }
    return s;
}

template <typename T, int N, typename I> __device__ Row<Wide<T>, N> load_row(const Input<I> &x, int64_t at, int64_t step)
{
    Row<Wide<T>, N> row;
    if (x.type == FERRY_BOOL) {
        const Side<uint8_t, N> s = load_side<uint8_t, N>(x, at, step);
#pragma unroll
        for (int e = 0; e < N; e++) {
            row.at[e] = s.at[e] != 0 ? 1 : 0;
        }
    } else if (sizeof(T) == 2 && x.type == FERRY_F32) {
        const Side<float, N> s = load_side<float, N>(x, at, step);
#pragma unroll
        for (int e = 0; e < N; e++) {
            row.at[e] = static_cast<Wide<T>>(s.at[e]);
        }
    } else {
        const Side<T, N> s = load_side<T, N>(x, at, step);
#pragma unroll
        for (int e = 0; e < N; e++) {
            row.at[e] = static_cast<Wide<T>>(s.at[e]);
        }
    }
    return row;
}

template <typename E, typename W, int N> __device__ void store_side(void *y, int64_t at, const Row<W, N> &row, bool accumulate)
{
    Side<E, N> *to = reinterpret_cast<Side<E, N> *>(static_cast<E *>(y) + at), s = {};
    if (accumulate) {
        s = *to;
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        s.at[e] = static_cast<E>(accumulate ? static_cast<W>(s.at[e]) + row.at[e] : row.at[e]);
    }
    *to = s;
}

template <typename T, int N> __device__ void store_row(const Output &y, int64_t at, const Row<Wide<T>, N> &row, bool accumulate)
{
    if (y.type == FERRY_BOOL) {
        Row<Wide<T>, N> flag;
#pragma unroll
        for (int e = 0; e < N; e++) {
            flag.at[e] = row.at[e] != 0 ? 1 : 0;
        }
        store_side<uint8_t, Wide<T>, N>(y.at, at, flag, false);
    } else if (sizeof(T) == 2 && y.type == FERRY_F32) {
        store_side<float, Wide<T>, N>(y.at, at, row, accumulate);
    } else {
        store_side<T, Wide<T>, N>(y.at, at, row, accumulate);
    }
}

__device__ __noinline__ float any_step(ferry_op op, ferry_fn fn, bool adds, double alpha, float a, float b, float c)
{
    const ferry_program_step s = {op, fn, 0, adds ? 0 : -1, -1, alpha};
    return program_step_f32(&s, a, b, c);
}

__device__ __noinline__ double any_step(ferry_op op, ferry_fn fn, bool adds, double alpha, double a, double b, double c)
{
    const ferry_program_step s = {op, fn, 0, adds ? 0 : -1, -1, alpha};
    return program_step_f64(&s, a, b, c);
}

__device__ float unary_of(ferry_fn fn, float x)
{
    return unary_f32(fn, x);
}
__device__ double unary_of(ferry_fn fn, double x)
{
    return unary_f64(fn, x);
}
__device__ float unary_grad_of(ferry_fn fn, float dy, float x, float y)
{
    return unary_grad_f32(fn, dy, x, y);
}
__device__ double unary_grad_of(ferry_fn fn, double dy, double x, double y)
{
    return unary_grad_f64(fn, dy, x, y);
}

/* The steps that models are made of have a place of their own; the others share one. */
template <typename W, int N>
__device__ void run_step(const Instruction &s, const Row<W, N> &a, const Row<W, N> &b, const Row<W, N> &c, Row<W, N> *y)
{
#define EACH(EXPRESSION)                                                                                               \
    do {                                                                                                               \
        _Pragma("unroll") for (int e = 0; e < N; e++)                                                                  \
        {                                                                                                              \
            y->at[e] = EXPRESSION;                                                                                     \
        }                                                                                                              \
        return;                                                                                                        \
    } while (0)
    switch (s.op) {
    case FERRY_OP_BINARY:
        switch (s.fn) {
        case FERRY_ADD:
            EACH(a.at[e] + b.at[e]);
        case FERRY_SUB:
            EACH(a.at[e] - b.at[e]);
        case FERRY_MUL:
            EACH(a.at[e] * b.at[e]);
        case FERRY_DIV:
            EACH(a.at[e] / b.at[e]);
        default:
            break;
        }
        break;
    case FERRY_OP_BINARY_GRAD_A:
        if (s.fn == FERRY_MUL) {
            EACH(a.at[e] * c.at[e]);
        }
        break;
    case FERRY_OP_BINARY_GRAD_B:
        if (s.fn == FERRY_MUL) {
            EACH(a.at[e] * b.at[e]);
        }
        break;
    case FERRY_OP_COPY:
        if (s.b >= 0) {
            EACH(b.at[e] + static_cast<W>(s.alpha) * a.at[e]);
        }
        EACH(static_cast<W>(s.alpha) * a.at[e]);
    case FERRY_OP_WHERE:
        EACH(a.at[e] != 0 ? b.at[e] : c.at[e]);
    case FERRY_OP_UNARY:
        switch (s.fn) {
        case FERRY_NEG:
            EACH(-a.at[e]);
        case FERRY_SQUARE:
            EACH(a.at[e] * a.at[e]);
        case FERRY_SILU:
            EACH(unary_of(FERRY_SILU, a.at[e]));
        case FERRY_SIGMOID:
            EACH(unary_of(FERRY_SIGMOID, a.at[e]));
        case FERRY_GELU:
            EACH(unary_of(FERRY_GELU, a.at[e]));
        case FERRY_GELU_TANH:
            EACH(unary_of(FERRY_GELU_TANH, a.at[e]));
        case FERRY_TANH:
            EACH(unary_of(FERRY_TANH, a.at[e]));
        case FERRY_RELU:
            EACH(unary_of(FERRY_RELU, a.at[e]));
        default:
            break;
        }
        break;
    case FERRY_OP_UNARY_GRAD:
        switch (s.fn) {
        case FERRY_SILU:
            EACH(unary_grad_of(FERRY_SILU, a.at[e], b.at[e], 0));
        case FERRY_GELU:
            EACH(unary_grad_of(FERRY_GELU, a.at[e], b.at[e], 0));
        case FERRY_GELU_TANH:
            EACH(unary_grad_of(FERRY_GELU_TANH, a.at[e], b.at[e], 0));
        case FERRY_RELU:
            EACH(unary_grad_of(FERRY_RELU, a.at[e], b.at[e], 0));
        default:
            break;
        }
        break;
    default:
        break;
    }
    EACH(any_step(s.op, s.fn, s.b >= 0, s.alpha, a.at[e], b.at[e], c.at[e]));
#undef EACH
}

template <typename T, int N, typename I>
__global__ void __launch_bounds__(FUSED_THREADS) fused(const __grid_constant__ Program<I> p)
{
    using W = Wide<T>;
    using V = Row<W, N>;
    extern __shared__ unsigned char shared[];
    V *value = reinterpret_cast<V *>(shared) + threadIdx.x;
    for (int s = 0; s < p.steps; s++) {
        if (p.step[s].op == FERRY_OP_FILL) {
#pragma unroll
            for (int e = 0; e < N; e++) {
                value[p.step[s].slot * FUSED_THREADS].at[e] = static_cast<W>(p.step[s].alpha);
            }
        }
    }
    for (I i = blockIdx.x * static_cast<I>(FUSED_THREADS) + threadIdx.x; i < p.packs;
         i += gridDim.x * static_cast<I>(FUSED_THREADS)) {
        I at[FERRY_PROGRAM_INPUTS] = {}, rest = i;
        for (int d = p.rank - 1; d >= 0; d--) {
            const I quotient = d > 0 ? rest / p.dim[d] : 0, index = (rest - quotient * p.dim[d]) * (d == p.rank - 1 ? N : 1);
            rest = quotient;
#pragma unroll
            for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
                if (x < p.inputs) {
                    at[x] += index * p.input[x].stride[d];
                }
            }
        }
        V row[FERRY_PROGRAM_INPUTS];
#pragma unroll
        for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
            if (x < p.inputs) {
                row[x] = load_row<T, N>(p.input[x], offset_of(at[x]), offset_of(p.input[x].stride[p.rank - 1]));
            }
        }
#pragma unroll
        for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
            if (x < p.inputs) {
                value[x * FUSED_THREADS] = row[x];
            }
        }
        V last = {};
        int last_slot = -1;
        const auto get = [&](int slot) { return slot == last_slot ? last : value[slot * FUSED_THREADS]; };
        for (int s = 0; s < p.steps; s++) {
            const Instruction &step = p.step[s];
            if (step.op == FERRY_OP_FILL) {
                continue;
            }
            V a = get(step.a), b = {}, c = {};
            if (step.b >= 0) {
                b = get(step.b);
            }
            if (step.c >= 0) {
                c = get(step.c);
            }
            run_step(step, a, b, c, &last);
            last_slot = step.slot;
            if (step.keep) {
                value[step.slot * FUSED_THREADS] = last;
            }
        }
#pragma unroll
        for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++) {
            if (p.output[o].at != nullptr) {
                store_row<T, N>(p.output[o], static_cast<int64_t>(i) * N, get(p.output[o].slot), p.accumulate);
            }
        }
    }
}

/* ---- from a call to a program ------------------------------------------------------------------------------------ */

/* The dimensions through which all inputs step evenly joined, and those of size 1 dropped: at least one is left. */
void join_dims(ferry_kernel *k)
{
    int n = 0;
    for (int i = 0; i < k->rank; i++) {
        if (k->dim[i] == 1) {
            continue;
        }
        bool even = n > 0;
        for (int x = 0; x < FERRY_PROGRAM_INPUTS && even; x++) {
            even = k->arg[FERRY_PROGRAM_OUTPUTS + x] == nullptr ||
                   k->program.stride[x][n - 1] == k->dim[i] * k->program.stride[x][i];
        }
        if (even) {
            k->dim[n - 1] *= k->dim[i];
        } else {
            k->dim[n++] = k->dim[i];
        }
        for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
            k->program.stride[x][n - 1] = k->program.stride[x][i];
        }
    }
    if (n == 0) {
        n = 1;
        k->dim[0] = 1;
        for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
            k->program.stride[x][0] = 0;
        }
    }
    k->rank = n;
}

/* Can N neighbours be read and written at a time? */
bool takes_packs(const ferry_kernel *k, int n)
{
    if (k->dim[k->rank - 1] % n != 0) {
        return false;
    }
    for (int i = 0; i < FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS; i++) {
        const uintptr_t side = static_cast<uintptr_t>(n) * ferry_dtype_bytes(k->program.type[i]);
        const int x = i - FERRY_PROGRAM_OUTPUTS;
        if (k->arg[i] == nullptr) {
            continue;
        }
        if (x < 0) {
            if (reinterpret_cast<uintptr_t>(k->arg[i]) % side != 0) {
                return false;
            }
            continue;
        }
        const int64_t *stride = k->program.stride[x];
        if (stride[k->rank - 1] != 1) {
            continue; /* one by one, or one for all */
        }
        bool aligned = reinterpret_cast<uintptr_t>(k->arg[i]) % side == 0 && k->program.offset[x] % n == 0;
        for (int d = 0; d < k->rank - 1; d++) {
            aligned = aligned && stride[d] % n == 0;
        }
        if (!aligned) {
            return false;
        }
    }
    return true;
}

template <typename T, int N, typename I> int launch_fused(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    Program<I> p = {};
    int slot_of[VALUES], slots = 0;
    int64_t packs = 1;
    p.rank = k->rank;
    for (int d = 0; d < k->rank; d++) {
        int64_t size = d == k->rank - 1 ? k->dim[d] / N : k->dim[d];
        p.dim[d] = static_cast<I>(size);
        packs *= size;
    }
    p.packs = static_cast<I>(packs);
    p.accumulate = k->accumulate;
    for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
        const int arg = FERRY_PROGRAM_OUTPUTS + x;
        if (k->arg[arg] == nullptr) {
            continue;
        }
        Input<I> &to = p.input[p.inputs++];
        const int64_t *stride = k->program.stride[x], inner = stride[k->rank - 1];
        to.type = k->program.type[arg];
        to.at = static_cast<const char *>(k->arg[arg]) +
                k->program.offset[x] * static_cast<int64_t>(ferry_dtype_bytes(to.type));
        to.reading = inner == 1 ? PACKED : inner == 0 ? SAME : SINGLE;
        for (int d = 0; d < k->rank; d++) {
            to.stride[d] = static_cast<I>(stride[d]);
        }
        slot_of[x] = slots++;
    }
    for (int s = 0; s < k->program.steps; s++) {
        const ferry_program_step &from = k->program.step[s];
        Instruction &to = p.step[p.steps++];
        slot_of[FERRY_PROGRAM_INPUTS + s] = slots++;
        to.op = from.op;
        to.fn = from.fn;
        to.alpha = from.alpha;
        to.slot = slot_of[FERRY_PROGRAM_INPUTS + s];
        to.a = from.a >= 0 ? slot_of[from.a] : -1;
        to.b = from.b >= 0 ? slot_of[from.b] : -1;
        to.c = from.c >= 0 ? slot_of[from.c] : -1;
        to.keep = false;
    }
    for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++) {
        if (k->arg[o] != nullptr) {
            p.output[o] = {k->arg[o], k->program.type[o], slot_of[k->program.out[o]]};
        }
    }
    for (int s = 0; s < p.steps; s++) {
        for (int later = s + 1; later < p.steps; later++) {
            const Instruction &by = p.step[later];
            bool reads = by.a == p.step[s].slot || by.b == p.step[s].slot || by.c == p.step[s].slot;
            /* a FILL in between is skipped and leaves `last` alone */
            bool next = true;
            for (int m = s + 1; m < later; m++) {
                next = next && p.step[m].op == FERRY_OP_FILL;
            }
            p.step[s].keep = p.step[s].keep || (reads && !next);
        }
        bool is_last = true;
        for (int m = s + 1; m < p.steps; m++) {
            is_last = is_last && p.step[m].op == FERRY_OP_FILL;
        }
        for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++) {
            p.step[s].keep = p.step[s].keep || (p.output[o].at != nullptr && p.output[o].slot == p.step[s].slot && !is_last);
        }
    }
    const size_t bytes = static_cast<size_t>(slots) * FUSED_THREADS * sizeof(Row<Wide<T>, N>);
    fused<T, N, I><<<blocks_for(c, packs, FUSED_THREADS), FUSED_THREADS, bytes, stream_of(c)>>>(p);
    return cudaGetLastError();
}

/* Do all indices and offsets fit into 31 bits? */
bool fits_small(const ferry_kernel *k)
{
    int64_t total = 1;
    for (int d = 0; d < k->rank; d++) {
        total *= k->dim[d];
    }
    for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
        int64_t reach = 0;
        for (int d = 0; d < k->rank && k->arg[FERRY_PROGRAM_OUTPUTS + x] != nullptr; d++) {
            reach += (k->dim[d] - 1) * (k->program.stride[x][d] < 0 ? -k->program.stride[x][d] : k->program.stride[x][d]);
        }
        if (reach > INT32_MAX) {
            return false;
        }
    }
    return total <= INT32_MAX - (1 << 24);
}

template <typename T> int launch_program(const ferryi_cuda_call *c, ferry_kernel *k)
{
    constexpr int N = sizeof(T) == 8 ? 2 : 4;
    const bool packs = takes_packs(k, N);
    if (fits_small(k)) {
        return packs ? launch_fused<T, N, uint32_t>(c, k) : launch_fused<T, 1, uint32_t>(c, k);
    }
    return packs ? launch_fused<T, N, int64_t>(c, k) : launch_fused<T, 1, int64_t>(c, k);
}

/* ---- ROTARY ----------------------------------------------------------------------------------------------------- */

/* N elements of the first half of a row and those of the second that they are turned with. */
template <typename T, int N>
__global__ void rotary(Dims<int64_t> d, T *y, const T *x, const T *cosine, const T *sine, int64_t half, bool reverse)
{
    using W = Wide<T>;
    using S = Side<T, N>;
    const int64_t each = half / N, total = d.total * each;
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
        const int64_t row = i / each, j = (i - row * each) * N;
        int64_t where[3];
        d.template at<3>(row, where);
        const auto load = [j](const T *p) { return *reinterpret_cast<const S *>(p + j); };
        const S x0 = load(x + where[1]), x1 = load(x + where[1] + half);
        const S c0 = load(cosine + where[2]), c1 = load(cosine + where[2] + half);
        const S s0 = load(sine + where[2]), s1 = load(sine + where[2] + half);
        S y0, y1;
#pragma unroll
        for (int e = 0; e < N; e++) {
            const W a = static_cast<W>(x0.at[e]), b = static_cast<W>(x1.at[e]);
            const W sin0 = static_cast<W>(s0.at[e]), sin1 = static_cast<W>(s1.at[e]);
            const W of_b = reverse ? b * sin1 : -(b * sin0), of_a = reverse ? -(a * sin0) : a * sin1;
            y0.at[e] = static_cast<T>(a * static_cast<W>(c0.at[e]) + of_b);
            y1.at[e] = static_cast<T>(b * static_cast<W>(c1.at[e]) + of_a);
        }
        *reinterpret_cast<S *>(y + row * 2 * half + j) = y0;
        *reinterpret_cast<S *>(y + row * 2 * half + half + j) = y1;
    }
}

/* Where may N neighbours of x (argument 1), cos and sin be read at a time? */
template <typename T> bool rotary_takes(const ferry_kernel *k, const ferryi_walk &w, int n)
{
    bool aligned = k->n / 2 % n == 0;
    for (int i = 0; i < 4; i++) {
        aligned = aligned && reinterpret_cast<uintptr_t>(k->arg[i]) % (sizeof(T) * static_cast<uintptr_t>(n)) == 0;
    }
    for (int d = 0; d < w.rank; d++) {
        aligned = aligned && w.stride[1][d] % n == 0 && w.stride[2][d] % n == 0;
    }
    return aligned;
}

template <typename T> void launch_rotary(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    constexpr int N = 16 / sizeof(T);
    Dims<int64_t> d = dims_of<int64_t>(w);
    const int64_t half = k->n / 2, n = rotary_takes<T>(k, w, N) ? N : 1;
    const unsigned blocks = blocks_for(c, d.total * (half / n), THREADS);
    if (n == N) {
        rotary<T, N><<<blocks, THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), half, k->reverse);
    } else {
        rotary<T, 1><<<blocks, THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), half, k->reverse);
    }
}

} // namespace

/* ---- from C ----------------------------------------------------------------------------------------------------- */

int ferryi_cuda_fused(const ferryi_cuda_call *c, const ferry_kernel *call)
{
    ferry_kernel k = *call;
    for (int d = 0; d < k.rank; d++) {
        if (k.dim[d] == 0) {
            return 0;
        }
    }
    join_dims(&k);
    FLOATING(k.dtype, return launch_program<T>(c, &k));
}

int ferryi_cuda_rotary(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    ferryi_walk w = ferryi_walk_plain(k);
    if (!w.more || k->n == 0) {
        return 0;
    }
    memset(w.stride[0], 0, sizeof(w.stride[0]));
    ferryi_walk_join(&w);
    FLOATING(k->dtype, launch_rotary<T>(c, k, w));
    return cudaGetLastError();
}
