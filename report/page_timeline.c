/* page_timeline.c - the streams over two steps, as a picture that stretches.
 *
 * needs: Report, Window   fills: text   keeps: all
 * The picture is scaled to any width without keeping its proportions, so it holds no text: names of streams and the
 * axis are HTML around it. Kernels of one segment that follow each other without a gap are one span. */
#include "report/page.h"

#include <inttypes.h>

typedef struct Lane {
    StepStream stream;
    const char *label;
    int top, height;
} Lane;
static const Lane LANES[] = {
    {STREAM_HOST, "host", 2, 16},     {STREAM_COMPUTE, "compute", 28, 44}, {STREAM_LOAD, "load", 82, 28},
    {STREAM_STORE, "store", 120, 28}, {STREAM_UPDATE, "update", 158, 28},
};
enum { N_LANE = sizeof LANES / sizeof LANES[0], PICTURE_HEIGHT = 190 };

typedef struct Span {
    int64_t start_ns, end_ns; /* in the window */
    int step, kernels, iteration;
    bool dha_read, dha_write;
} Span;

static const char *span_class(const Step *x)
{
    switch (x->kind) {
    case STEP_KERNEL:
        return phase_name(x->phase);
    case STEP_LOAD_INPUT:
    case STEP_LOAD:
        return "ld";
    case STEP_STORE_LOSS:
    case STEP_STORE:
        return "st";
    case STEP_SQNORM:
    case STEP_NORM:
        return "nm";
    case STEP_ADAMW:
        return "up";
    default:
        return "ho";
    }
}

static void describe_segment(const Graph *g, const Step *x, Text *to)
{
    static const char *const what[PHASE_COUNT] = {"forward", "backward", "recomputation"};
    text_add(to, "%s of ", what[x->phase]);
    int layer = x->segment / 2;
    if (x->segment % 2 == 1) {
        text_add_html(to, g->layer[layer].name);
    } else if (layer == 0) {
        text_add(to, "what comes before ");
        text_add_html(to, g->n_layer ? g->layer[0].name : "the loss");
    } else {
        text_add(to, "what follows ");
        text_add_html(to, g->layer[layer - 1].name);
        if (layer == g->n_layer)
            text_add(to, ", and the loss");
    }
}

static void describe(const Report *r, const Span *p, Text *to)
{
    static const char *const which[] = {" (step before)", "", "", " (step after)"};
    const Graph *g = r->graph;
    const Step *x = &r->steps->step[p->step];
    char from[32], length[32], size[32];
    const char *unit = x->unit >= 0 ? g->unit[x->unit].name : "";
    switch (x->kind) {
    case STEP_KERNEL:
        describe_segment(g, x, to);
        break;
    case STEP_LOAD:
        text_add(to, x->copy == 2 ? "second load of " : "load of ");
        text_add_html(to, unit);
        text_add(to, ", %s", size_print(size, g->unit[x->unit].bytes));
        break;
    case STEP_STORE:
        text_add(to, "gradients of ");
        text_add_html(to, unit);
        text_add(to, " to the host, %s", size_print(size, g->unit[x->unit].grad_bytes));
        break;
    case STEP_SQNORM:
        text_add(to, "squared norm of ");
        text_add_html(to, unit);
        break;
    case STEP_ADAMW:
        text_add(to, "update of ");
        text_add_html(to, unit);
        break;
    case STEP_STAGE:
        text_add(to, "inputs to pinned memory");
        break;
    case STEP_LOAD_INPUT:
        text_add(to, "load of the inputs");
        break;
    case STEP_STORE_LOSS:
        text_add(to, "loss to the host");
        break;
    case STEP_NORM:
        text_add(to, "norm of all gradients");
        break;
    case STEP_COLLECT:
        text_add(to, "loss and norm to the caller");
        break;
    }
    text_add(to, "%s\n%s", which[p->iteration - ITERATION_FIRST], time_print(length, p->end_ns - p->start_ns));
    text_add(to, " from %s on", time_print(from, p->start_ns < 0 ? 0 : p->start_ns));
    if (p->kernels > 1)
        text_add(to, ", %d kernels", p->kernels);
    if (p->dha_read || p->dha_write)
        text_add(to, "\n%s host memory (DHA)",
                 p->dha_read && p->dha_write ? "reads and writes"
                 : p->dha_read               ? "reads"
                                             : "writes");
}

/* The unit that a span belongs to: what is shown together when it is pointed at. */
static int span_unit(const Graph *g, const Step *x)
{
    if (x->unit >= 0)
        return x->unit;
    if (x->kind != STEP_KERNEL || x->segment % 2 == 0 || g->layer[x->segment / 2].n_unit == 0)
        return -1;
    return g->layer[x->segment / 2].unit[0];
}

static void add_span(const Report *r, const Window *w, const Lane *lane, const Span *p, Text *to)
{
    int64_t start = p->start_ns < 0 ? 0 : p->start_ns, end = p->end_ns > w->length_ns ? w->length_ns : p->end_ns;
    if (start >= w->length_ns || end < start || (end == 0 && p->iteration < 0))
        return;
    const Step *x = &r->steps->step[p->step];
    int unit = span_unit(r->graph, x);
    text_add(to, "<g class=\"%s%s%s\"", span_class(x),
             x->segment >= 0 && x->segment % 2 == 1 ? " l"
             : x->unit % 2 == 1                     ? " e"
                                                    : "",
             p->iteration == 0 || p->iteration == 1 ? "" : " o");
    if (unit >= 0)
        text_add(to, " data-u=\"%d\"", unit);
    text_add(to, "><title>");
    describe(r, p, to);
    text_add(to, "</title>");
    double x0 = page_x(w, start), x1 = page_x(w, end);
    if (p->end_ns == p->start_ns)
        text_add(to, "<path class=\"t\" d=\"M%.2f %dv%d\"/>", x0, lane->top, lane->height);
    else
        text_add(to, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>", x0, lane->top, x1 - x0, lane->height);
    if (p->dha_read || p->dha_write)
        text_add(to, "<rect class=\"dha\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"7\"/>", x0,
                 lane->top + lane->height - 7, x1 - x0);
    text_add(to, "</g>\n");
}

static void add_lane(const Report *r, const Window *w, const Lane *lane, Text *to)
{
    const StepList *s = r->steps;
    for (int it = ITERATION_FIRST; it <= ITERATION_LAST; it++) {
        Span open = {.step = -1};
        for (int i = 0; i < s->n_step; i++) {
            const Step *x = &s->step[i];
            Span p = {.step = i, .kernels = 1, .iteration = it};
            if (x->stream != lane->stream || !page_step_times(r, w, it, i, &p.start_ns, &p.end_ns))
                continue;
            steps_is_dha(s, x, &p.dha_read, &p.dha_write);
            const Step *last = open.step >= 0 ? &s->step[open.step] : NULL;
            if (last && x->kind == STEP_KERNEL && last->segment == x->segment && last->phase == x->phase &&
                open.end_ns == p.start_ns) {
                open.end_ns = p.end_ns;
                open.kernels++;
                open.dha_read |= p.dha_read;
                open.dha_write |= p.dha_write;
                continue;
            }
            if (last)
                add_span(r, w, lane, &open, to);
            open = p;
        }
        if (open.step >= 0)
            add_span(r, w, lane, &open, to);
    }
}

static int64_t first_kernel(const Report *r, const Window *w, int iteration)
{
    for (int i = 0; i < r->steps->n_step; i++) {
        int64_t start, end;
        if (r->steps->step[i].stream == STREAM_COMPUTE && page_step_times(r, w, iteration, i, &start, &end))
            return start;
    }
    return -1;
}

static void add_lane_labels(const Report *r, Text *to)
{
    text_add(to, "<div class=\"labels\" style=\"height:%dpx\">\n", PICTURE_HEIGHT);
    for (int i = 0; i < N_LANE; i++) {
        const Lane *lane = &LANES[i];
        int64_t period = r->time.period_ns > 0 ? r->time.period_ns : 1;
        text_add(to, "<div style=\"top:%dpx;height:%dpx\"><b>%s</b>", lane->top, lane->height, lane->label);
        if (lane->stream != STREAM_HOST)
            text_add(to, " <i>%.0f&#8239;%%</i>", 100.0 * (double)r->time.busy_ns[lane->stream] / (double)period);
        text_add(to, "</div>\n");
    }
    text_add(to, "</div>\n");
}

void page_timeline(const Report *r, const Window *w, Text *to)
{
    bool dha = false, norm = false;
    for (int i = 0; i < r->steps->n_step; i++) {
        dha |= steps_is_dha(r->steps, &r->steps->step[i], NULL, NULL);
        norm |= r->steps->step[i].kind == STEP_NORM;
    }
    text_add(to,
             "<ul class=\"legend\">\n<li><s class=\"fp\"></s>forward</li>\n<li><s class=\"bp\"></s>backward</li>\n");
    if (r->graph->n_again > 0)
        text_add(to, "<li><s class=\"rp\"></s>computed again</li>\n");
    if (dha)
        text_add(to, "<li><s class=\"dha\"></s>touches host memory (DHA)</li>\n");
    text_add(
        to,
        "<li><s class=\"ld\"></s>load</li>\n<li><s class=\"st\"></s>store</li>\n<li><s class=\"up\"></s>update</li>\n");
    if (norm)
        text_add(to, "<li><s class=\"nm\"></s>norm</li>\n");
    if (w->wraps)
        text_add(to, "<li><s class=\"o\"></s>paler: steps before and after</li>\n");
    text_add(to, "</ul>\n<div class=\"chart\">\n");
    add_lane_labels(r, to);
    text_add(to,
             "<div class=\"plot\">\n<svg class=\"time\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
             "height=\"%d\" role=\"img\" "
             "aria-label=\"What each stream does in two steps\">\n",
             PICTURE_WIDTH, PICTURE_HEIGHT, PICTURE_HEIGHT);
    for (int i = 0; i < N_LANE; i++)
        text_add(to, "<rect class=\"lane\" x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LANES[i].top,
                 PICTURE_WIDTH, LANES[i].height);
    for (int i = 0; i < N_LANE; i++)
        add_lane(r, w, &LANES[i], to);
    text_add(to, "<path class=\"mark\" d=\"M%.2f 0v%d\"><title>the second step begins to compute</title></path>\n",
             page_x(w, first_kernel(r, w, 1)), PICTURE_HEIGHT);
    text_add(to, "</svg>\n</div>\n</div>\n");
    page_axis(w, to);
}

/* ---- axis
 * -------------------------------------------------------------------------------------------------------------- */

void page_axis(const Window *w, Text *to)
{
    int64_t distance = 1;
    for (int k = 0; w->length_ns / distance > 10; k++)
        distance = k % 3 == 1 ? distance / 2 * 5 : distance * 2; /* 1, 2, 5, 10 */
    text_add(to, "<div class=\"chart\"><div class=\"labels\"></div><div class=\"plot axis\">");
    int count = 0;
    for (int64_t at = 0; at <= w->length_ns; at += distance, count++) {
        double percent = 100.0 * (double)at / (double)w->length_ns;
        char label[32];
        if (percent > 94)
            break;
        /* one unit and as many digits on the whole axis */
        if (distance >= 1000000000)
            snprintf(label, sizeof label, "%" PRId64 " s", at / 1000000000);
        else if (distance >= 1000000)
            snprintf(label, sizeof label, "%" PRId64 " ms", at / 1000000);
        else if (distance >= 1000)
            snprintf(label, sizeof label, "%" PRId64 " us", at / 1000);
        else
            snprintf(label, sizeof label, "%" PRId64 " ns", at);
        text_add(to, "<span%s style=\"left:%.3f%%\">%s</span>", count % 2 || percent > 82 ? " class=\"wide\"" : "",
                 percent, label);
    }
    text_add(to, "</div></div>\n");
}
