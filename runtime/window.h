/* window.h - the geometry of convolutions and poolings as the kernels walk it.
 *
 * Output position o of an axis sees the input positions o * step - pad + t * dilation for t in [0, size); those outside of
 * [0, in) are padding. With one and two spatial dimensions the missing ones come first and have extent 1, so that every
 * kernel is written once for three. */
#ifndef FERRY_RUNTIME_WINDOW_H
#define FERRY_RUNTIME_WINDOW_H

#include "runtime/both.h"
#include "runtime/ferry.h"

typedef struct ferryi_axis {
    int64_t in, out, size, step, pad, pad_end, dilation;
} ferryi_axis;

typedef struct ferryi_window3 {
    ferryi_axis axis[3];
    int64_t n_in, n_out, n_size; /* products over the axes */
} ferryi_window3;

FERRYI_BOTH ferryi_window3 ferryi_window_wide(const ferry_window *w)
{
    ferryi_window3 wide;
    wide.n_in = wide.n_out = wide.n_size = 1;
    for (int i = 0; i < 3; i++) {
        int from = i - (3 - w->rank);
        wide.axis[i] = (ferryi_axis){1, 1, 1, 1, 0, 0, 1};
        if (from >= 0) {
            wide.axis[i] = (ferryi_axis){w->in[from],  w->out[from],     w->size[from],    w->step[from],
                                         w->pad[from], w->pad_end[from], w->dilation[from]};
        }
        wide.n_in *= wide.axis[i].in;
        wide.n_out *= wide.axis[i].out;
        wide.n_size *= wide.axis[i].size;
    }
    return wide;
}

/* Input position of tap t of output position o. It may lie outside of the input. */
FERRYI_BOTH int64_t ferryi_window_at(const ferryi_axis *a, int64_t o, int64_t t)
{
    return o * a->step - a->pad + t * a->dilation;
}

/* The taps [*from, *to) of output position o that lie in [low, high). */
FERRYI_BOTH void ferryi_window_taps(const ferryi_axis *a, int64_t o, int64_t low, int64_t high, int64_t *from,
                                      int64_t *to)
{
    int64_t first = ferryi_window_at(a, o, 0);
    *from = first >= low ? 0 : (low - first + a->dilation - 1) / a->dilation;
    *to = first >= high ? 0 : (high - first + a->dilation - 1) / a->dilation;
    *to = *to < a->size ? *to : a->size;
    *from = *from < *to ? *from : *to;
}

/* How many taps of output position o count for a mean: those in the input, or with count_pad those in the padded input,
 * whose end the last window of a rounded-up output may pass. */
FERRYI_BOTH int64_t ferryi_window_count(const ferryi_axis *a, int64_t o, bool count_pad)
{
    int64_t from, to;
    ferryi_window_taps(a, o, count_pad ? -a->pad : 0, count_pad ? a->in + a->pad_end : a->in, &from, &to);
    return to - from;
}

#endif
