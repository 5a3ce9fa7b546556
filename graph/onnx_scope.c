/* onnx_scope.c - names and attributes inside functions and branches; onnx_scope.h. */
#include "graph/onnx_scope.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *scope_name(Arena *a, const Scope *s, const char *name)
{
    if (s == NULL || name[0] == '\0')
        return name;
    for (int i = 0; i < s->n_bound; i++)
        if (strcmp(s->formal[i], name) == 0)
            return s->actual[i];
    if (s->function || bsearch(&name, s->local, (size_t)s->n_local, sizeof *s->local, compare) != NULL)
        return arena_printf(a, "%s%s", s->prefix, name);
    return scope_name(a, s->outer, name);
}

const Attr *scope_attr(const Scope *s, const char *name)
{
    while (s != NULL && !s->function)
        s = s->outer;
    for (int i = 0; s != NULL && i < s->n_attr; i++)
        if (strcmp(s->attr[i].name, name) == 0)
            return &s->attr[i];
    return NULL;
}

/* Strings of one field of a message, such as a node's outputs; to == NULL: counts only. */
static int strings(Arena *a, const WireField *message, uint32_t number, const char **to, bool *oom)
{
    int count = 0;
    WireField f;
    for (Wire w = {message->at, message->at + message->size, NULL}; wire_next(&w, &f);) {
        if (f.number != number || f.size == 0)
            continue;
        if (to != NULL) {
            char *copy = arena_alloc(a, f.size + 1, 1);
            *oom = *oom || copy == NULL;
            to[count] = copy != NULL ? memcpy(copy, f.at, f.size) : "";
        }
        count++;
    }
    return count;
}

Status scope_read_locals(Diag *d, Arena *a, Wire graph, Scope *s)
{
    bool oom = false;
    for (int pass = 0; pass < 2; pass++) {
        int count = 0;
        WireField f;
        for (Wire w = graph; wire_next(&w, &f);)
            if (f.number == 1 || f.number == 5) /* a node's outputs, a tensor's name */
                count += strings(a, &f, f.number == 1 ? 2 : 8, pass ? s->local + count : NULL, &oom);
        s->n_local = count;
        if (pass == 0 && (s->local = ARENA_NEW(a, const char *, count)) == NULL)
            return diag_oom(d);
    }
    qsort(s->local, (size_t)s->n_local, sizeof *s->local, compare);
    return oom ? diag_oom(d) : ST_OK;
}
