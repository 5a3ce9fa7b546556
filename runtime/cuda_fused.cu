/* cuda_fused.cu - FUSED and ROTARY: a chain of element-wise kernels as one, which reads each input once.
 *
 * FUSED interprets its program, some elements a thread side by side, so that finding out what a step does costs little beside
 * doing it. The values lie in shared memory, a column for each thread; what a step computed stays in registers for the next
 * one. All threads take the same way. Programs that large models run all the time are known beforehand and compiled. This
 * file is compiled without contraction of a*b+c, as the single kernels are: a program gives their bits. */
#include "runtime/cuda_scalar.cuh"

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

/* What a step does, in one number where models are made of it. */
enum Code {
    CODE_ANY,
    CODE_FILL,
    CODE_ADD,
    CODE_SUB,
    CODE_MUL,
    CODE_MUL_A, /* the gradients of a product: of a and b, a and c */
    CODE_DIV,
    CODE_SCALE,
    CODE_ADD_SCALED,
    CODE_WHERE,
    CODE_NEG,
    CODE_SQUARE,
    CODE_TANH,
    CODE_SIGMOID,
    CODE_RELU,
    CODE_SILU,
    CODE_GELU,
    CODE_GELU_TANH,
    CODE_RELU_GRAD,
    CODE_SILU_GRAD,
    CODE_GELU_GRAD,
    CODE_GELU_TANH_GRAD,
};

/* Operands as slots: inputs that there are, then steps. */
struct Instruction {
    Code code;
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

/* In accesses as wide as can be: the compiler copies elements that have a constructor one by one. */
template <typename S> __device__ void copy_side(void *to, const void *from)
{
    if constexpr (sizeof(S) % sizeof(uint4) == 0) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(S) / sizeof(uint4)); i++) {
            static_cast<uint4 *>(to)[i] = static_cast<const uint4 *>(from)[i];
        }
    } else if constexpr (sizeof(S) == sizeof(uint2)) {
        *static_cast<uint2 *>(to) = *static_cast<const uint2 *>(from);
    } else {
        *static_cast<S *>(to) = *static_cast<const S *>(from);
    }
}

template <typename E, int N, typename I> __device__ Side<E, N> load_side(const Input<I> &x, int64_t at, int64_t step)
{
    const E *from = static_cast<const E *>(x.at) + at;
    Side<E, N> s;
    if (x.reading == PACKED) {
        copy_side<Side<E, N>>(&s, from);
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
    E *to = static_cast<E *>(y) + at;
    Side<E, N> s = {};
    if (accumulate) {
        copy_side<Side<E, N>>(&s, to);
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        s.at[e] = static_cast<E>(accumulate ? static_cast<W>(s.at[e]) + row.at[e] : row.at[e]);
    }
    copy_side<Side<E, N>>(to, &s);
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
__device__ __forceinline__ void run_step(const Instruction &s, const Row<W, N> &a, const Row<W, N> &b, const Row<W, N> &c, Row<W, N> *y)
{
#define CASE(CODE, EXPRESSION)                                                                                         \
    case CODE:                                                                                                         \
        _Pragma("unroll") for (int e = 0; e < N; e++)                                                                  \
        {                                                                                                              \
            y->at[e] = EXPRESSION;                                                                                     \
        }                                                                                                              \
        break
    switch (s.code) {
        CASE(CODE_ADD, a.at[e] + b.at[e]);
        CASE(CODE_SUB, a.at[e] - b.at[e]);
        CASE(CODE_MUL, a.at[e] * b.at[e]);
        CASE(CODE_MUL_A, a.at[e] * c.at[e]);
        CASE(CODE_DIV, a.at[e] / b.at[e]);
        CASE(CODE_SCALE, static_cast<W>(s.alpha) * a.at[e]);
        CASE(CODE_ADD_SCALED, b.at[e] + static_cast<W>(s.alpha) * a.at[e]);
        CASE(CODE_WHERE, a.at[e] != 0 ? b.at[e] : c.at[e]);
        CASE(CODE_NEG, -a.at[e]);
        CASE(CODE_SQUARE, a.at[e] * a.at[e]);
        CASE(CODE_TANH, unary_of(FERRY_TANH, a.at[e]));
        CASE(CODE_SIGMOID, unary_of(FERRY_SIGMOID, a.at[e]));
        CASE(CODE_RELU, unary_of(FERRY_RELU, a.at[e]));
        CASE(CODE_SILU, unary_of(FERRY_SILU, a.at[e]));
        CASE(CODE_GELU, unary_of(FERRY_GELU, a.at[e]));
        CASE(CODE_GELU_TANH, unary_of(FERRY_GELU_TANH, a.at[e]));
        CASE(CODE_RELU_GRAD, unary_grad_of(FERRY_RELU, a.at[e], b.at[e], 0));
        CASE(CODE_SILU_GRAD, unary_grad_of(FERRY_SILU, a.at[e], b.at[e], 0));
        CASE(CODE_GELU_GRAD, unary_grad_of(FERRY_GELU, a.at[e], b.at[e], 0));
        CASE(CODE_GELU_TANH_GRAD, unary_grad_of(FERRY_GELU_TANH, a.at[e], b.at[e], 0));
    default:
        _Pragma("unroll") for (int e = 0; e < N; e++)
        {
            y->at[e] = any_step(s.op, s.fn, s.b >= 0, s.alpha, a.at[e], b.at[e], c.at[e]);
        }
        break;
    }
#undef CASE
}

/* A column of shared memory: 16 bytes of a value, FUSED_THREADS columns further the next ones. */
template <typename W, int N> struct Column {
    static constexpr int SIDE = N * sizeof(W) > 16 ? 16 / sizeof(W) : N;
    using Part = Row<W, SIDE>;
    Part *at;

    __device__ Row<W, N> get(int slot) const
    {
        Row<W, N> row;
#pragma unroll
        for (int p = 0; p < N / SIDE; p++) {
            const Part part = at[(slot * (N / SIDE) + p) * FUSED_THREADS];
#pragma unroll
            for (int e = 0; e < SIDE; e++) {
                row.at[p * SIDE + e] = part.at[e];
            }
        }
        return row;
    }
    __device__ void put(int slot, const Row<W, N> &row) const
    {
#pragma unroll
        for (int p = 0; p < N / SIDE; p++) {
            Part part;
#pragma unroll
            for (int e = 0; e < SIDE; e++) {
                part.at[e] = row.at[p * SIDE + e];
            }
            at[(slot * (N / SIDE) + p) * FUSED_THREADS] = part;
        }
    }
};

template <typename T, int N, typename I>
__global__ void __launch_bounds__(FUSED_THREADS) fused(const __grid_constant__ Program<I> p)
{
    using W = Wide<T>;
    using V = Row<W, N>;
    extern __shared__ __align__(16) unsigned char shared[];
    const Column<W, N> value = {reinterpret_cast<typename Column<W, N>::Part *>(shared) + threadIdx.x};
    for (int s = 0; s < p.steps; s++) {
        if (p.step[s].code == CODE_FILL) {
            V row;
#pragma unroll
            for (int e = 0; e < N; e++) {
                row.at[e] = static_cast<W>(p.step[s].alpha);
            }
            value.put(p.step[s].slot, row);
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
#pragma unroll
        for (int x = 0; x < FERRY_PROGRAM_INPUTS; x++) {
            if (x < p.inputs) {
                value.put(x, load_row<T, N>(p.input[x], offset_of(at[x]), offset_of(p.input[x].stride[p.rank - 1])));
            }
        }
        V last = {};
        int last_slot = -1;
        for (int s = 0; s < p.steps; s++) {
            const Instruction &step = p.step[s];
            if (step.code == CODE_FILL) {
                continue;
            }
            V a = last, b = last, c = last;
            if (step.a != last_slot) {
                a = value.get(step.a);
            }
            if (step.b >= 0 && step.b != last_slot) {
                b = value.get(step.b);
            }
            if (step.c >= 0 && step.c != last_slot) {
                c = value.get(step.c);
            }
            run_step(step, a, b, c, &last);
            last_slot = step.slot;
            if (step.keep) {
                value.put(step.slot, last);
            }
        }
#pragma unroll
        for (int o = 0; o < FERRY_PROGRAM_OUTPUTS; o++) {
            if (p.output[o].at != nullptr) {
                store_row<T, N>(p.output[o], static_cast<int64_t>(i) * N,
                                p.output[o].slot == last_slot ? last : value.get(p.output[o].slot), p.accumulate);
            }
        }
    }
}

/* ---- programs that are compiled ------------------------------------------------------------------------------------ */

/* A gate, fn(x0) * x1. */
template <int FN> struct Gate {
    static constexpr int INPUTS = 2, OUTPUTS = 1;
    template <typename W> static __device__ void run(const W *x, W *y)
    {
        y[0] = unary_of(static_cast<ferry_fn>(FN), x[0]) * x[1];
    }
};

/* Its gradients: x0 as there, dy, x1 as there; of x1 and of x0. */
template <int FN> struct GateGrad {
    static constexpr int INPUTS = 3, OUTPUTS = 2;
    template <typename W> static __device__ void run(const W *x, W *y)
    {
        y[0] = x[1] * unary_of(static_cast<ferry_fn>(FN), x[0]);
        y[1] = unary_grad_of(static_cast<ferry_fn>(FN), x[1] * x[2], x[0], 0);
    }
};

struct SumOfThree {
    static constexpr int INPUTS = 3, OUTPUTS = 1;
    template <typename W> static __device__ void run(const W *x, W *y)
    {
        y[0] = (x[0] + x[1]) + x[2];
    }
};

struct Arrays {
    const void *in[FERRY_PROGRAM_INPUTS];
    void *out[FERRY_PROGRAM_OUTPUTS];
};

template <typename T, typename C> __global__ void compiled(const __grid_constant__ Arrays a, int64_t n)
{
    using W = Wide<T>;
    using P = Pack<T>;
    const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = first; i < n / P::N; i += step) {
        P in[C::INPUTS], out[C::OUTPUTS];
#pragma unroll
        for (int x = 0; x < C::INPUTS; x++) {
            in[x] = load_pack(static_cast<const T *>(a.in[x]) + i * P::N);
        }
#pragma unroll
        for (int e = 0; e < P::N; e++) {
            W x[C::INPUTS], y[C::OUTPUTS];
#pragma unroll
            for (int k = 0; k < C::INPUTS; k++) {
                x[k] = static_cast<W>(in[k].at[e]);
            }
            C::run(x, y);
#pragma unroll
            for (int k = 0; k < C::OUTPUTS; k++) {
                out[k].at[e] = static_cast<T>(y[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < C::OUTPUTS; k++) {
            store_pack(static_cast<T *>(a.out[k]) + i * P::N, out[k]);
        }
    }
}

/* Is the program this one, but for the numbers of its inputs? bound[i]: the input that stands where the pattern has i. Sums and
 * products may have their operands in either order. */
bool is_program(const ferry_program &p, int steps, const ferry_program_step *pattern, const int *outs, int outputs, int *bound)
{
    for (int i = 0; i < FERRY_PROGRAM_INPUTS; i++) {
        bound[i] = -1;
    }
    const auto same = [bound](int value, int of_pattern) {
        if (of_pattern < 0 || of_pattern >= FERRY_PROGRAM_INPUTS) {
            return value == of_pattern;
        }
        if (value < 0 || value >= FERRY_PROGRAM_INPUTS || (bound[of_pattern] >= 0 && bound[of_pattern] != value)) {
            return false;
        }
        bound[of_pattern] = value;
        return true;
    };
    if (p.steps != steps) {
        return false;
    }
    for (int i = 0; i < steps; i++) {
        const ferry_program_step &s = p.step[i], &t = pattern[i];
        bool turned = s.op == FERRY_OP_BINARY && (s.fn == FERRY_MUL || s.fn == FERRY_ADD) && t.a >= FERRY_PROGRAM_INPUTS &&
                      s.a < FERRY_PROGRAM_INPUTS;
        if (s.op != t.op || s.fn != t.fn || !same(turned ? s.b : s.a, t.a) || !same(turned ? s.a : s.b, t.b) || !same(s.c, t.c)) {
            return false;
        }
    }
    for (int o = 0; o < outputs; o++) {
        if (p.out[o] != outs[o]) {
            return false;
        }
    }
    return true;
}

template <typename T, typename C> void launch_compiled(const ferryi_cuda_call *c, const ferry_kernel *k, const int *bound)
{
    Arrays a = {};
    for (int x = 0; x < C::INPUTS; x++) {
        a.in[x] = k->arg[FERRY_PROGRAM_OUTPUTS + bound[x]];
    }
    for (int o = 0; o < C::OUTPUTS; o++) {
        a.out[o] = k->arg[o];
    }
    compiled<T, C><<<blocks_for(c, k->dim[0], THREADS * Pack<T>::N), THREADS, 0, stream_of(c)>>>(a, k->dim[0]);
}

/* Plain arrays of one type, whole packs: may the program be a compiled one? */
template <typename T> bool is_plain_program(const ferry_kernel *k)
{
    bool plain = k->rank == 1 && !k->accumulate && k->dim[0] % Pack<T>::N == 0;
    for (int i = 0; i < FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS; i++) {
        const int x = i - FERRY_PROGRAM_OUTPUTS;
        plain = plain && (k->arg[i] == nullptr ||
                          (k->program.type[i] == k->dtype && is_packed(k->arg[i]) &&
                           (x < 0 || (k->program.stride[x][0] == 1 && k->program.offset[x] == 0))));
    }
    return plain;
}

template <typename T, int FN> bool launch_gate(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    constexpr ferry_fn f = static_cast<ferry_fn>(FN);
    const ferry_program_step gate[] = {{FERRY_OP_UNARY, f, 0, -1, -1, 0}, {FERRY_OP_BINARY, FERRY_MUL, 7, 1, -1, 0}};
    /* the product was fn(x0) * x1 or x1 * fn(x0) */
    const ferry_program_step first[] = {{FERRY_OP_UNARY, f, 0, -1, -1, 0},
                                        {FERRY_OP_BINARY_GRAD_B, FERRY_MUL, 1, 7, -1, 0},
                                        {FERRY_OP_BINARY_GRAD_A, FERRY_MUL, 1, -1, 2, 0},
                                        {FERRY_OP_UNARY_GRAD, f, 9, 0, -1, 0}};
    const ferry_program_step second[] = {{FERRY_OP_UNARY, f, 0, -1, -1, 0},
                                         {FERRY_OP_BINARY_GRAD_B, FERRY_MUL, 1, 2, -1, 0},
                                         {FERRY_OP_BINARY_GRAD_A, FERRY_MUL, 1, -1, 7, 0},
                                         {FERRY_OP_UNARY_GRAD, f, 8, 0, -1, 0}};
    const int of_gate[] = {8, -1, -1}, of_first[] = {8, 10, -1}, of_second[] = {9, 10, -1};
    int bound[FERRY_PROGRAM_INPUTS];
    if (is_program(k->program, 2, gate, of_gate, 3, bound)) {
        return launch_compiled<T, Gate<FN>>(c, k, bound), true;
    }
    if (is_program(k->program, 4, first, of_first, 3, bound) || is_program(k->program, 4, second, of_second, 3, bound)) {
        return launch_compiled<T, GateGrad<FN>>(c, k, bound), true;
    }
    return false;
}

template <typename T> bool launch_known(const ferryi_cuda_call *c, const ferry_kernel *k)
{
    const ferry_program_step sum[] = {{FERRY_OP_BINARY, FERRY_ADD, 0, 1, -1, 0}, {FERRY_OP_BINARY, FERRY_ADD, 7, 2, -1, 0}};
    const int of_sum[] = {8, -1, -1};
    int bound[FERRY_PROGRAM_INPUTS];
    if (!is_plain_program<T>(k)) {
        return false;
    }
    if (is_program(k->program, 2, sum, of_sum, 3, bound)) {
        return launch_compiled<T, SumOfThree>(c, k, bound), true;
    }
    return launch_gate<T, FERRY_SILU>(c, k) || launch_gate<T, FERRY_GELU>(c, k) || launch_gate<T, FERRY_GELU_TANH>(c, k);
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

Code code_of(const ferry_program_step &s)
{
    switch (s.op) {
    case FERRY_OP_FILL:
        return CODE_FILL;
    case FERRY_OP_COPY:
        return s.b >= 0 ? CODE_ADD_SCALED : CODE_SCALE;
    case FERRY_OP_WHERE:
        return CODE_WHERE;
    case FERRY_OP_BINARY_GRAD_A:
        return s.fn == FERRY_MUL ? CODE_MUL_A : CODE_ANY;
    case FERRY_OP_BINARY_GRAD_B:
        return s.fn == FERRY_MUL ? CODE_MUL : CODE_ANY;
    case FERRY_OP_BINARY:
        return s.fn == FERRY_ADD   ? CODE_ADD
               : s.fn == FERRY_SUB ? CODE_SUB
               : s.fn == FERRY_MUL ? CODE_MUL
               : s.fn == FERRY_DIV ? CODE_DIV
                                   : CODE_ANY;
    case FERRY_OP_UNARY:
        return s.fn == FERRY_NEG         ? CODE_NEG
               : s.fn == FERRY_SQUARE    ? CODE_SQUARE
               : s.fn == FERRY_TANH      ? CODE_TANH
               : s.fn == FERRY_SIGMOID   ? CODE_SIGMOID
               : s.fn == FERRY_RELU      ? CODE_RELU
               : s.fn == FERRY_SILU      ? CODE_SILU
               : s.fn == FERRY_GELU      ? CODE_GELU
               : s.fn == FERRY_GELU_TANH ? CODE_GELU_TANH
                                         : CODE_ANY;
    case FERRY_OP_UNARY_GRAD:
        return s.fn == FERRY_RELU        ? CODE_RELU_GRAD
               : s.fn == FERRY_SILU      ? CODE_SILU_GRAD
               : s.fn == FERRY_GELU      ? CODE_GELU_GRAD
               : s.fn == FERRY_GELU_TANH ? CODE_GELU_TANH_GRAD
                                         : CODE_ANY;
    default:
        return CODE_ANY;
    }
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
        to.code = code_of(from);
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
    if (bytes > 48 << 10) { /* a program of many values; the driver is asked once more each time, which changes nothing */
        cudaError_t error =
            cudaFuncSetAttribute(fused<T, N, I>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
        if (error != cudaSuccess) {
            return error;
        }
    }
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
    constexpr int N = sizeof(T) == 8 ? 2 : 8;
    const bool packs = takes_packs(k, N);
    if (launch_known<T>(c, k)) {
        return cudaGetLastError();
    }
    if (fits_small(k)) {
        return packs ? launch_fused<T, N, uint32_t>(c, k) : launch_fused<T, 1, uint32_t>(c, k);
    }
    return packs ? launch_fused<T, N, int64_t>(c, k) : launch_fused<T, 1, int64_t>(c, k);
}

/* ---- ROTARY ----------------------------------------------------------------------------------------------------- */

/* N elements of the first half of a row and those of the second that they are turned with. */
template <typename T, int N, typename I>
__global__ void rotary(Dims<I> d, T *y, const T *x, const T *cosine, const T *sine, I half, bool reverse)
{
    using W = Wide<T>;
    using S = Side<T, N>;
    const I each = half / N, total = d.total * each;
    for (I i = blockIdx.x * static_cast<I>(blockDim.x) + threadIdx.x; i < total; i += gridDim.x * static_cast<I>(blockDim.x)) {
        const I line = i / each;
        const int64_t j = (i - line * each) * N, row = line;
        I at[3];
        d.template at<3>(line, at);
        const int64_t where[3] = {0, offset_of(at[1]), offset_of(at[2])};
        const auto load = [j](const T *p) {
            S side;
            copy_side<S>(&side, p + j);
            return side;
        };
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
        copy_side<S>(y + row * 2 * half + j, &y0);
        copy_side<S>(y + row * 2 * half + half + j, &y1);
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

template <typename T, typename I> void launch_rotary(const ferryi_cuda_call *c, const ferry_kernel *k, const ferryi_walk &w)
{
    constexpr int N = 16 / sizeof(T);
    const Dims<I> d = dims_of<I>(w);
    const I half = static_cast<I>(k->n / 2);
    const bool wide = rotary_takes<T>(k, w, N);
    const unsigned blocks = blocks_for(c, elements_of(w) * (k->n / 2 / (wide ? N : 1)), THREADS);
    if (wide) {
        rotary<T, N, I><<<blocks, THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), half, k->reverse);
    } else {
        rotary<T, 1, I><<<blocks, THREADS, 0, stream_of(c)>>>(d, out<T>(k, 0), in<T>(k, 1), in<T>(k, 2), in<T>(k, 3), half, k->reverse);
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
    if (is_small(w) && elements_of(w) * k->n <= INT32_MAX - (1 << 24)) {
        FLOATING(k->dtype, launch_rotary<T, uint32_t>(c, k, w));
    } else {
        FLOATING(k->dtype, launch_rotary<T, int64_t>(c, k, w));
    }
    return cudaGetLastError();
}
