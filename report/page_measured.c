/* page_measured.c - a recorded run beside what the plan predicted: both timelines, sums by stream, times by layer.
 *
 * needs: Report with a run   fills: text   keeps: all
 * One step of the steady state; both count from the start of their first compute part. The picture has two lanes for
 * each stream, the predicted one above the measured one. */
#include "report/page.h"

#include <inttypes.h>
#include <string.h>

static const StepStream STREAMS[] = {STREAM_COMPUTE, STREAM_LOAD, STREAM_STORE, STREAM_UPDATE};
enum { N_STREAM = sizeof STREAMS / sizeof STREAMS[0], LANE = 22, PAIR = 2 * LANE + 12 };

static int64_t predicted_zero(const Report *r)
{
    for (int i = 0; i < r->parts.n; i++)
        if (r->parts.part[i].stream == STREAM_COMPUTE)
            return r->time.start_ns[r->parts.part[i].first];
    return 0;
}

void page_part_times(const Report *r, int part, bool measured, int64_t *start_ns, int64_t *end_ns)
{
    const Part *p = &r->parts.part[part];
    if (measured) {
        *start_ns = r->run->part[part].start_ns;
        *end_ns = *start_ns + r->run->part[part].median_ns;
        return;
    }
    const int64_t zero = predicted_zero(r);
    *start_ns = r->time.start_ns[p->first] - zero;
    *end_ns = r->time.end_ns[p->last] - zero;
}

static void cell_pair(Text *to, const char *label, int64_t predicted, int64_t measured)
{
    char a[32], b[32];
    text_add(to, "<td class=\"num half\" data-l=\"%s\">%s</td><td class=\"num half\" data-l=\"measured\">%s</td>",
             label, time_print(a, predicted), time_print(b, measured));
}

/* ---- the picture ---------------------------------------------------------------------------------------------------
 */

static const char *part_class(const Part *p)
{
    switch (p->stream) {
    case STREAM_COMPUTE:
        return strcmp(p->what, "forward") == 0 ? "fp" : strcmp(p->what, "recompute") == 0 ? "rp" : "bp";
    case STREAM_LOAD:
        return "ld";
    case STREAM_STORE:
        return "st";
    default:
        return strcmp(p->what, "adamw") == 0 ? "up" : "nm";
    }
}

static void add_part(const Report *r, const Window *w, int part, bool measured, int top, Text *to)
{
    const Part *p = &r->parts.part[part];
    int64_t start, end;
    char from[32], length[32];
    page_part_times(r, part, measured, &start, &end);
    double x0 = page_x(w, start - w->zero_ns), x1 = page_x(w, end - w->zero_ns);
    text_add(to, "<g class=\"%s\"><title>%s ", part_class(p), p->what);
    text_add_html(to, p->of);
    text_add(to, "\n%s, %s from %s%s on</title>", measured ? "measured" : "predicted", time_print(length, end - start),
             start < 0 ? "-" : "", time_print(from, start < 0 ? -start : start));
    text_add(to, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/></g>\n", x0, top, x1 - x0, LANE);
}

static Window whole_step(const Report *r)
{
    int64_t first = 0, last = 1;
    for (int i = 0; i < r->parts.n; i++)
        for (int m = 0; m < 2; m++) {
            int64_t start, end;
            page_part_times(r, i, m == 1, &start, &end);
            first = start < first ? start : first;
            last = end > last ? end : last;
        }
    return (Window){.zero_ns = first, .length_ns = last - first};
}

static void picture(const Report *r, Text *to)
{
    const Window w = whole_step(r);
    const int height = N_STREAM * PAIR;
    text_add(to, "<div class=\"chart\">\n<div class=\"labels\" style=\"height:%dpx\">\n", height);
    for (int i = 0; i < N_STREAM; i++)
        text_add(
            to,
            "<div style=\"top:%dpx;height:%dpx\"><b>%s</b></div>\n<div style=\"top:%dpx;height:%dpx\"><i>measured</i>"
            "</div>\n",
            i * PAIR, LANE, step_stream_name(STREAMS[i]), i * PAIR + LANE + 2, LANE);
    text_add(to,
             "</div>\n<div class=\"plot\">\n<svg class=\"measured\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
             "height=\"%d\" role=\"img\" aria-label=\"Each stream in one step, predicted and measured\">\n",
             PICTURE_WIDTH, height, height);
    for (int i = 0; i < N_STREAM; i++)
        for (int m = 0; m < 2; m++) {
            const int top = i * PAIR + m * (LANE + 2);
            text_add(to, "<rect class=\"lane\" x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", top, PICTURE_WIDTH,
                     LANE);
            for (int k = 0; k < r->parts.n; k++)
                if (r->parts.part[k].stream == STREAMS[i])
                    add_part(r, &w, k, m == 1, top, to);
        }
    text_add(to, "</svg>\n</div>\n</div>\n");
    page_axis(&w, to);
}

/* ---- tables
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct Sums {
    int64_t predicted, measured;
} Sums;

static void add_to(Sums *s, const Report *r, int part)
{
    int64_t start, end;
    page_part_times(r, part, false, &start, &end);
    s->predicted += end - start;
    s->measured += r->run->part[part].median_ns;
}

static void ratio(Text *to, int64_t measured, int64_t predicted)
{
    text_add(to, "<td class=\"num\" data-l=\"measured / predicted\">");
    if (predicted > 0)
        text_add(to, "%.3f</td>", (double)measured / (double)predicted);
    else
        text_add(to, "&#8212;</td>");
}

static void streams(const Report *r, Text *to)
{
    char a[32], b[32];
    const RunTiming *t = &r->run->iteration;
    text_add(to, "<table>\n<thead><tr><th scope=\"col\">of one step</th><th scope=\"col\" class=\"num\">predicted</th>"
                 "<th scope=\"col\" class=\"num\">measured</th><th scope=\"col\" "
                 "class=\"num\">ratio</th></tr></thead>\n<tbody>\n"
                 "<tr class=\"self\"><th scope=\"row\">step");
    text_add(to, "<small>median of %d, %s to", r->run->steps - 1, time_print(a, t->min_ns));
    text_add(to, " %s</small></th><td class=\"num\" data-l=\"predicted\">%s</td>", time_print(a, t->max_ns),
             time_print(b, r->time.period_ns));
    text_add(to, "<td class=\"num\" data-l=\"measured\">%s</td>", time_print(a, t->median_ns));
    ratio(to, t->median_ns, r->time.period_ns);
    text_add(to, "</tr>\n");
    for (int i = 0; i < N_STREAM; i++) {
        Sums s = {0};
        for (int k = 0; k < r->parts.n; k++)
            if (r->parts.part[k].stream == STREAMS[i])
                add_to(&s, r, k);
        text_add(to, "<tr><th scope=\"row\">%s<small>sum of its parts, with what they wait for inside</small></th>",
                 step_stream_name(STREAMS[i]));
        text_add(to, "<td class=\"num\" data-l=\"predicted\">%s</td>", time_print(a, s.predicted));
        text_add(to, "<td class=\"num\" data-l=\"measured\">%s</td>", time_print(a, s.measured));
        ratio(to, s.measured, s.predicted);
        text_add(to, "</tr>\n");
    }
    const int64_t held = r->run->pool_bytes + r->run->scratch_bytes;
    text_add(to,
             "<tr><th scope=\"row\">GPU memory<small>pool and scratch</small></th>"
             "<td class=\"num\" data-l=\"predicted\">%s</td>",
             size_print(a, r->plan->peak_bytes));
    text_add(to, "<td class=\"num\" data-l=\"measured\">%s</td>", size_print(a, held));
    ratio(to, held, r->plan->peak_bytes);
    text_add(to, "</tr>\n</tbody>\n</table>\n");
}

static const struct {
    const char *what, *label;
} COLUMNS[] = {
    {"forward", "forward"}, {"backward", "backward"}, {"load", "load"}, {"store", "store"}, {"adamw", "update"}};
enum { N_COLUMN = sizeof COLUMNS / sizeof COLUMNS[0] };

/* What is computed again is a part of the backward pass. */
static bool is_in_column(const Part *p, const char *what)
{
    return strcmp(p->what, what) == 0 || (strcmp(p->what, "recompute") == 0 && strcmp(what, "backward") == 0);
}

/* One row a name, in the order of first use. Layers and the units that are called after them share a row. */
static void layers(const Report *r, Text *to)
{
    text_add(to, "<table class=\"units\">\n<thead><tr class=\"groups\"><th></th>");
    for (int c = 0; c < N_COLUMN; c++)
        text_add(to, "<th colspan=\"2\">%s</th>", COLUMNS[c].label);
    text_add(to, "</tr>\n<tr><th scope=\"col\">layer or unit</th>");
    for (int c = 0; c < N_COLUMN; c++)
        text_add(to, "<th scope=\"col\" class=\"num\">predicted</th><th scope=\"col\" class=\"num\">measured</th>");
    text_add(to, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < r->parts.n; i++) {
        const char *name = r->parts.part[i].of;
        bool known = name[0] == '\0' && strcmp(r->parts.part[i].what, "forward") != 0;
        for (int k = 0; k < i && !known; k++)
            known = strcmp(r->parts.part[k].of, name) == 0 &&
                    (name[0] != '\0' || strcmp(r->parts.part[k].what, "forward") == 0);
        if (known)
            continue;
        text_add(to, "<tr><th scope=\"row\">");
        text_add_html(to, name[0] ? name : "after the last layer, and the loss");
        text_add(to, "</th>");
        for (int c = 0; c < N_COLUMN; c++) {
            Sums s = {0};
            bool any = false;
            for (int k = 0; k < r->parts.n; k++)
                if (strcmp(r->parts.part[k].of, name) == 0 && is_in_column(&r->parts.part[k], COLUMNS[c].what)) {
                    add_to(&s, r, k);
                    any = true;
                }
            if (any)
                cell_pair(to, COLUMNS[c].label, s.predicted, s.measured);
            else
                text_add(
                    to,
                    "<td class=\"num off\" data-l=\"%s\">&#8212;</td><td class=\"num off\" data-l=\"measured\"></td>",
                    COLUMNS[c].label);
        }
        text_add(to, "</tr>\n");
    }
    text_add(to, "</tbody>\n</table>\n");
}

void page_measured(const Report *r, Text *to)
{
    text_add(to, "<section>\n<h2>Predicted and measured</h2>\n<p class=\"note\">%d recorded steps on ", r->run->steps);
    text_add_html(to, r->run->device);
    text_add(to, ": medians. Times count from the first kernel of a step.</p>\n");
    picture(r, to);
    streams(r, to);
    layers(r, to);
    text_add(to, "</section>\n");
}
