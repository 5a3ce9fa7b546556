/* plan_check_layout.c - the layout: places are whole and apart, and buffers that share bytes never need them at once.
 *
 * needs: order over three iterations, a list whose orderings are proven   keeps: everything
 *
 * Two buffers that share a byte are safe when any two of their lives, one life of each buffer in each iteration, are
 * apart: all accesses of one happen before all of the other. The lives of the middle iteration of each are compared
 * with all three lives of the other. */
#include <stdlib.h>
#include <string.h>

#include "planner/plan_check.h"

typedef struct Span {
    int64_t begin, end;
    int buffer;
} Span;

/* Accesses of one buffer in one iteration: per stream the last one, counted from the start, and the least that all
 * know. */
typedef struct Extent {
    int last[STREAM_COUNT];
    int least[STREAM_COUNT];
} Extent;

typedef struct Check {
    Diag *d;
    const StepList *s;
    const Order *order;
    const Layout *layout;
    Extent *extent; /* by device buffer and iteration */
    bool *kept;     /* by device buffer: holds data across iterations */
    int *place;     /* by device buffer: its place */
    Span *span;
    int n_span;
} Check;

static int compare_span(const void *a, const void *b)
{
    const Span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

typedef struct Named {
    const char *name;
    int index;
} Named;

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const Named *)a)->name, ((const Named *)b)->name);
}

static Status check_places(Check *c)
{
    const StepList *s = c->s;
    const Layout *layout = c->layout;
    Named *names = base_alloc(((size_t)s->n_device + 1) * sizeof *names);
    if (!names)
        return diag_oom(c->d);
    for (int i = 0; i < s->n_device; i++) {
        names[i] = (Named){s->buffer[i].name, i};
        c->place[i] = -1;
    }
    qsort(names, (size_t)s->n_device, sizeof *names, compare_named);
    Status status = ST_OK;
    for (int i = 0; i + 1 < s->n_device && status == ST_OK; i++)
        if (strcmp(names[i].name, names[i + 1].name) == 0)
            status = diag_fail(c->d, ST_FAILED, "buffer %s: two device buffers have this name", names[i].name);
    for (int i = 0; i < layout->n_place && status == ST_OK; i++) {
        Named key = {layout->place[i].buffer, 0};
        const Named *found = bsearch(&key, names, (size_t)s->n_device, sizeof *names, compare_named);
        if (!found)
            status = diag_fail(c->d, ST_FAILED, "layout: %s is no device buffer of this plan", key.name);
        else if (c->place[found->index] >= 0)
            status = diag_fail(c->d, ST_FAILED, "layout: buffer %s has two places", key.name);
        else
            c->place[found->index] = i;
    }
    for (int i = 0; i < s->n_device && status == ST_OK; i++)
        if (c->place[i] < 0)
            status = diag_fail(c->d, ST_FAILED, "layout: buffer %s has no place", s->buffer[i].name);
        else if (c->place[i] != i)
            status =
                diag_fail(c->d, ST_FAILED, "layout: buffer %s is number %d in the layout and %d in the list of steps",
                          s->buffer[i].name, c->place[i], i);
    base_free(names);
    return status;
}

static Status check_pieces(Check *c)
{
    const Layout *layout = c->layout;
    int64_t chunk = layout->chunk_bytes;
    if (chunk <= 0 || layout->reserved_bytes < 0 || layout->reserved_bytes % chunk != 0)
        return diag_fail(c->d, ST_FAILED, "layout: %lld bytes are not whole chunks of %lld bytes",
                         (long long)layout->reserved_bytes, (long long)chunk);
    for (int i = 0; i < layout->n_place; i++) {
        const Place *p = &layout->place[i];
        int64_t sum = 0;
        for (int k = 0; k < p->n_piece; k++) {
            const Piece *piece = &p->piece[k];
            if (piece->bytes <= 0 || piece->offset_bytes < 0 || piece->bytes > layout->reserved_bytes ||
                piece->offset_bytes > layout->reserved_bytes - piece->bytes)
                return diag_fail(
                    c->d, ST_FAILED,
                    "layout: buffer %s: piece %d (%lld bytes at %lld) is not inside the pool of %lld bytes", p->buffer,
                    k, (long long)piece->bytes, (long long)piece->offset_bytes, (long long)layout->reserved_bytes);
            if (p->n_piece > 1 &&
                (piece->offset_bytes % chunk != 0 || (k + 1 < p->n_piece && piece->bytes % chunk != 0)))
                return diag_fail(c->d, ST_FAILED,
                                 "layout: buffer %s: piece %d (%lld bytes at %lld) cannot be stitched of chunks",
                                 p->buffer, k, (long long)piece->bytes, (long long)piece->offset_bytes);
            if (add_overflows_i64(sum, piece->bytes, &sum))
                return diag_fail(c->d, ST_FAILED, "layout: buffer %s: its size overflows", p->buffer);
        }
        int64_t need = c->s->buffer[i].bytes;
        if (p->n_piece < 1 || sum < need)
            return diag_fail(c->d, ST_FAILED, "layout: buffer %s has %lld bytes and needs %lld", p->buffer,
                             (long long)sum, (long long)need);
    }
    return ST_OK;
}

static void fill_extents(Check *c)
{
    const StepList *s = c->s;
    const Order *o = c->order;
    for (int i = 0; i < s->n_device; i++) {
        c->kept[i] = s->buffer[i].preset;
        for (int it = 0; it < PROOF_ITERATIONS; it++)
            for (int t = 0; t < STREAM_COUNT; t++)
                c->extent[PROOF_ITERATIONS * i + it].least[t] = INT32_MAX;
    }
    for (int it = 0; it < PROOF_ITERATIONS; it++)
        for (int i = 0; i < s->n_step; i++) {
            const Step *step = &s->step[i];
            for (int k = 0; k < step->n_access; k++) {
                int buffer = step->access[k].buffer;
                if (buffer >= s->n_device)
                    continue;
                Extent *e = &c->extent[PROOF_ITERATIONS * buffer + it];
                /* a life that begins with a read needs what an earlier iteration left */
                if (e->least[0] == INT32_MAX && step->access[k].read)
                    c->kept[buffer] = true;
                e->last[step->stream] = it * o->per_stream[step->stream] + o->position[i] + 1;
                const int *clock = o->clock + ((size_t)it * (size_t)s->n_step + (size_t)i) * STREAM_COUNT;
                for (int t = 0; t < STREAM_COUNT; t++)
                    e->least[t] = clock[t] < e->least[t] ? clock[t] : e->least[t];
            }
        }
}

static bool extent_before(const Extent *a, const Extent *b)
{
    for (int t = 0; t < STREAM_COUNT; t++)
        if (a->last[t] > b->least[t])
            return false;
    return true;
}

static Status check_pair(const Check *c, int a, int b, int64_t offset)
{
    const StepList *s = c->s;
    if (a == b)
        return diag_fail(c->d, ST_FAILED, "layout: two pieces of buffer %s share the byte at %lld", s->buffer[a].name,
                         (long long)offset);
    if (c->kept[a] || c->kept[b])
        return diag_fail(c->d, ST_FAILED, "layout: buffers %s and %s share the byte at %lld, but %s is never free",
                         s->buffer[a].name, s->buffer[b].name, (long long)offset, s->buffer[c->kept[a] ? a : b].name);
    for (int i = 0; i < PROOF_ITERATIONS; i++)
        for (int j = 0; j < PROOF_ITERATIONS; j++) {
            const Extent *x = &c->extent[PROOF_ITERATIONS * a + i], *y = &c->extent[PROOF_ITERATIONS * b + j];
            if ((i != 1 && j != 1) || extent_before(x, y) || extent_before(y, x))
                continue;
            return diag_fail(c->d, ST_FAILED,
                             "layout: buffers %s (iteration %d) and %s (iteration %d) may be live at once and share "
                             "the byte at %lld",
                             s->buffer[a].name, i, s->buffer[b].name, j, (long long)offset);
        }
    return ST_OK;
}

/* Every pair of spans that overlap: a sweep over the beginnings, with those still open kept at the front. */
static Status check_sharing(Check *c)
{
    int open = 0;
    Span *active = base_alloc(((size_t)c->n_span + 1) * sizeof *active);
    if (!active)
        return diag_oom(c->d);
    Status status = ST_OK;
    for (int i = 0; i < c->n_span && status == ST_OK; i++) {
        const Span *span = &c->span[i];
        int kept = 0;
        for (int k = 0; k < open && status == ST_OK; k++) {
            if (active[k].end <= span->begin)
                continue;
            active[kept++] = active[k];
            status = check_pair(c, active[k].buffer, span->buffer, span->begin);
        }
        active[kept++] = *span;
        open = kept;
    }
    base_free(active);
    return status;
}

static Status check_all(Check *c)
{
    TRY(check_places(c));
    TRY(check_pieces(c));
    for (int i = 0; i < c->layout->n_place; i++)
        c->n_span += c->layout->place[i].n_piece;
    c->span = base_alloc(((size_t)c->n_span + 1) * sizeof *c->span);
    if (!c->span)
        return diag_oom(c->d);
    int n = 0;
    for (int i = 0; i < c->layout->n_place; i++)
        for (int k = 0; k < c->layout->place[i].n_piece; k++) {
            const Piece *p = &c->layout->place[i].piece[k];
            c->span[n++] = (Span){p->offset_bytes, p->offset_bytes + p->bytes, i};
        }
    qsort(c->span, (size_t)n, sizeof *c->span, compare_span);
    fill_extents(c);
    return check_sharing(c);
}

Status plan_check_layout(Diag *d, const StepList *s, const Order *order, const Layout *layout)
{
    Check c = {.d = d, .s = s, .order = order, .layout = layout};
    size_t n = (size_t)s->n_device;
    c.extent = base_alloc((n * PROOF_ITERATIONS + 1) * sizeof *c.extent);
    c.kept = base_alloc(n + 1);
    c.place = base_alloc((n + 1) * sizeof *c.place);
    Status status = !c.extent || !c.kept || !c.place ? diag_oom(d) : check_all(&c);
    base_free(c.extent);
    base_free(c.kept);
    base_free(c.place);
    base_free(c.span);
    return status;
}
