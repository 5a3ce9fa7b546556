/* ops_list.c - the operator table for people. */
#include "graph/ops_list.h"

#include <stdlib.h>
#include <string.h>

#include "graph/model.h"

typedef enum Gradient { YES, ZERO, NONE } Gradient;
static const char *const GRADIENT_NAMES[] = {[YES] = "yes", [ZERO] = "zero", [NONE] = "none"};

typedef struct Note {
    const char *op;
    Gradient gradient;
    const char *remark;
} Note;

static const Note NOTES[] = {
#define NOTE(op, gradient, remark) {#op, gradient, remark},
#include "graph/ops_notes.def"
#undef NOTE
};

static Note note_of(const OpRow *row)
{
    for (size_t i = 0; i < sizeof NOTES / sizeof *NOTES; i++)
        if (strcmp(NOTES[i].op, row->op) == 0)
            return NOTES[i];
    return (Note){row->op, YES, NULL};
}

static int by_name(const void *a, const void *b)
{
    const OpRow *x = a, *y = b;
    int order = strcmp(x->op, y->op);
    return order ? order : (x->since > y->since) - (x->since < y->since);
}

/* A sorted copy of the table, freed by base_free; NULL marks the text. */
static OpRow *sorted(Text *to, int *count)
{
    const OpRow *row = op_rows(count);
    OpRow *copy = base_alloc((size_t)*count * sizeof *copy);
    if (!copy) {
        to->failed = true;
        return NULL;
    }
    memcpy(copy, row, (size_t)*count * sizeof *copy);
    qsort(copy, (size_t)*count, sizeof *copy, by_name);
    return copy;
}

void ops_list_table(Text *to)
{
    int count;
    OpRow *row = sorted(to, &count);
    if (!row)
        return;
    text_add(to, "| %-26s | opsets   | folds | runs | gradient | remark\n", "operator");
    text_add(to, "|-%.26s-|----------|-------|------|----------|-------\n", "------------------------------");
    for (int i = 0; i < count; i++) {
        Note n = note_of(&row[i]);
        text_add(to, "| %-26s | %2d to %2d | %-5s | %-4s | %-8s |%s%s\n", row[i].op, row[i].since, row[i].until,
                 row[i].fold ? "yes" : "", row[i].lower ? "yes" : "", row[i].lower ? GRADIENT_NAMES[n.gradient] : "",
                 n.remark ? " " : "", n.remark ? n.remark : "");
    }
    base_free(row);
}

void ops_list_json(Text *to)
{
    int count;
    OpRow *row = sorted(to, &count);
    if (!row)
        return;
    text_add(to, "[");
    for (int i = 0; i < count; i++) {
        Note n = note_of(&row[i]);
        text_add(
            to,
            "%s\n  {\"operator\": \"%s\", \"since\": %d, \"until\": %d, \"folds\": %s, \"runs\": %s, \"gradient\": ",
            i ? "," : "", row[i].op, row[i].since, row[i].until, row[i].fold ? "true" : "false",
            row[i].lower ? "true" : "false");
        if (row[i].lower)
            text_add_quoted(to, GRADIENT_NAMES[n.gradient]);
        else
            text_add(to, "null");
        text_add(to, ", \"remark\": ");
        if (n.remark)
            text_add_quoted(to, n.remark);
        else
            text_add(to, "null");
        text_add(to, "}");
    }
    text_add(to, "\n]\n");
    base_free(row);
}

void ops_list_document(Text *to)
{
    text_add(to, "# Operators\n\n"
                 "The ONNX operators of the default domain that ferryc knows; `ferryc inspect --ops` prints the table, "
                 "with `--json` for\n"
                 "programs. A model with any other operator is refused, and the error names all of them.\n\n"
                 "- *opsets*: the versions of the standard in which the operator means what is implemented.\n"
                 "- *folds*: it is computed when compiling where its inputs are known: shapes, positions, masks, "
                 "rotary tables.\n"
                 "- *runs*: it has kernels; without them it is supported only where it folds.\n"
                 "- *gradient*: `yes`, with respect to every floating input; `zero`: its derivative is 0 wherever "
                 "there is one;\n"
                 "  `none`: its results are whole numbers or truth values, through which no gradient flows.\n\n"
                 "The standard's own test data decides: `tests/onnx/unsupported.txt` names each of its cases that does "
                 "not pass.\n\n");
    ops_list_table(to);
}
