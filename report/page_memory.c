/* page_memory.c - device memory over time: what may be live beside each compute step, by kind, against the budget.
 *
 * needs: Report, Window   fills: text   keeps: all
 * Areas from zero to the sum of a kind and all below it, the largest sum first, so that each covers what it does not
 * own. */
#include "report/page.h"

#include <inttypes.h>

enum { PICTURE_HEIGHT = 200, MAX_KINDS = 8 };

typedef struct Point {
    int64_t at_ns;
    int64_t bytes[MAX_KINDS];
} Point;

typedef struct Points {
    VEC(Point) list;
    int n_kind;
    const BufferKind *kind;
} Points;

static Status add_point(Diag *d, const Report *r, Points *points, int step, int64_t at)
{
    Point p = {.at_ns = at};
    bool changed = points->list.count == 0;
    const Point *last = changed ? NULL : &points->list.at[points->list.count - 1];
    for (int k = 0; k < points->n_kind; k++) {
        p.bytes[k] = r->live[(size_t)points->kind[k] * (size_t)r->steps->n_step + (size_t)step];
        changed = changed || p.bytes[k] != last->bytes[k];
    }
    if (!changed)
        return ST_OK;
    Point *slot = VEC_PUSH(&points->list);
    if (!slot)
        return diag_oom(d);
    *slot = p;
    return ST_OK;
}

/* What holds at the start of the window, then every change in it. */
static Status collect(Diag *d, const Report *r, const Window *w, Points *points)
{
    points->n_kind = page_memory_kinds(&points->kind);
    int n = 0, before = -1;
    for (int i = 0; i < r->steps->n_step; i++)
        if (r->steps->step[i].stream == STREAM_COMPUTE)
            before = i;
    for (int it = ITERATION_FIRST; it <= ITERATION_LAST; it++)
        for (int i = 0; i < r->steps->n_step; i++) {
            int64_t start, end;
            if (r->steps->step[i].stream != STREAM_COMPUTE || !page_step_times(r, w, it, i, &start, &end))
                continue;
            if (start >= w->length_ns)
                return n == 0 && before >= 0 ? add_point(d, r, points, before, 0) : ST_OK;
            if (start > 0) {
                if (n++ == 0)
                    TRY(add_point(d, r, points, before, 0));
                TRY(add_point(d, r, points, i, start));
            }
            before = i;
        }
    return ST_OK;
}

static double height(int64_t bytes, int64_t top)
{
    return PICTURE_HEIGHT * (1 - (double)bytes / (double)top);
}

static void add_area(const Points *p, const Window *w, int upto, int64_t top, Text *to)
{
    int64_t most = 0, last = -1;
    char size[32];
    text_add(to, "<path class=\"k%d\" d=\"M0 %d", upto, PICTURE_HEIGHT);
    for (int i = 0; i < p->list.count; i++) {
        const Point *q = &p->list.at[i];
        int64_t sum = 0;
        for (int k = 0; k <= upto; k++)
            sum += q->bytes[k];
        most = q->bytes[upto] > most ? q->bytes[upto] : most;
        if (sum == last)
            continue;
        if (i > 0)
            text_add(to, "H%.2f", page_x(w, q->at_ns));
        text_add(to, "V%.2f", height(sum, top));
        last = sum;
    }
    text_add(to, "H%dV%dZ\"><title>%s, at most %s</title></path>\n", PICTURE_WIDTH, PICTURE_HEIGHT,
             page_kind_label(p->kind[upto]), size_print(size, most));
}

static int64_t most_of(const Points *p, int kind)
{
    int64_t most = 0;
    for (int i = 0; i < p->list.count; i++)
        most = p->list.at[i].bytes[kind] > most ? p->list.at[i].bytes[kind] : most;
    return most;
}

static void add_legend(const Points *p, const Plan *plan, bool budget_shown, Text *to)
{
    char size[32];
    text_add(to, "<ul class=\"legend\">\n");
    for (int k = p->n_kind - 1; k >= 0; k--)
        if (most_of(p, k) > 0)
            text_add(to, "<li><s class=\"k%d\"></s>%s</li>\n", k, page_kind_label(p->kind[k]));
    text_add(to, "<li><s class=\"line peak\"></s>reserved %s</li>\n", size_print(size, plan->peak_bytes));
    text_add(to, "<li><s class=\"line budget\"></s>budget %s%s</li>\n</ul>\n", size_print(size, plan->budget_bytes),
             budget_shown ? "" : " (above the picture)");
}

/* Rounder sizes than size_print's: grid lines are whole numbers of a unit. */
static void grid_label(char *buf, size_t size, int64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int u = 0;
    while (bytes >= 1024 && bytes % 1024 == 0 && u < 6) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, size, "%" PRId64 " %s", bytes, unit[u]);
}

static void add_data(const Points *p, const Window *w, Text *to)
{
    text_add(to, " data-t=\"");
    for (int i = 0; i < p->list.count; i++)
        text_add(to, "%s%.2f", i ? " " : "", page_x(w, p->list.at[i].at_ns));
    text_add(to, "\"");
    for (int k = 0; k < p->n_kind; k++) {
        if (most_of(p, k) == 0)
            continue;
        text_add(to, " data-k%d=\"%s", k, page_kind_label(p->kind[k]));
        for (int i = 0; i < p->list.count; i++)
            text_add(to, " %" PRId64, p->list.at[i].bytes[k]);
        text_add(to, "\"");
    }
}

static void add_picture(const Report *r, const Window *w, const Points *p, Text *to)
{
    const Plan *plan = r->plan;
    int64_t high = plan->peak_bytes;
    for (int i = 0; i < p->list.count; i++) {
        int64_t sum = 0;
        for (int k = 0; k < p->n_kind; k++)
            sum += p->list.at[i].bytes[k];
        high = sum > high ? sum : high;
    }
    high = high > 0 ? high : 1;
    bool budget_shown = plan->budget_bytes / 2 <= high;
    if (budget_shown && plan->budget_bytes > high)
        high = plan->budget_bytes;
    int64_t top = high + high / 16 + 1, step = 1;
    while (top / step > 5)
        step *= 2;
    add_legend(p, plan, budget_shown, to);
    text_add(to, "<div class=\"chart\">\n<div class=\"labels\" style=\"height:%dpx\">\n", PICTURE_HEIGHT);
    for (int64_t at = 0; at <= top; at += step) {
        char label[40];
        grid_label(label, sizeof label, at);
        if (height(at, top) >= 6) /* not into what stands above */
            text_add(to, "<span style=\"top:%.2fpx\">%s</span>\n", height(at, top), at == 0 ? "0" : label);
    }
    text_add(to,
             "</div>\n<div class=\"plot\">\n<svg class=\"memory\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
             "height=\"%d\" "
             "role=\"img\" aria-label=\"Device memory by kind over two steps\"",
             PICTURE_WIDTH, PICTURE_HEIGHT, PICTURE_HEIGHT);
    add_data(p, w, to);
    text_add(to, ">\n");
    for (int k = p->n_kind - 1; k >= 0; k--)
        if (most_of(p, k) > 0)
            add_area(p, w, k, top, to);
    for (int64_t at = step; at <= top; at += step)
        text_add(to, "<path class=\"grid\" d=\"M0 %.2fh%d\"/>\n", height(at, top), PICTURE_WIDTH);
    text_add(to, "<path class=\"peak\" d=\"M0 %.2fh%d\"/>\n", height(plan->peak_bytes, top), PICTURE_WIDTH);
    if (budget_shown)
        text_add(to, "<path class=\"budget\" d=\"M0 %.2fh%d\"/>\n", height(plan->budget_bytes, top), PICTURE_WIDTH);
    text_add(to, "</svg>\n</div>\n</div>\n");
    page_axis(w, to);
}

Status page_memory(Diag *d, const Report *r, const Window *w, Text *to)
{
    Points p = {0};
    Status st = collect(d, r, w, &p);
    if (st == ST_OK)
        add_picture(r, w, &p, to);
    VEC_FREE(&p.list);
    return st;
}
