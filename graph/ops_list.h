/* ops_list.h - the operator table for people: `ferryc inspect --ops` and docs/operators.md. */
#ifndef FERRY_GRAPH_OPS_LIST_H
#define FERRY_GRAPH_OPS_LIST_H

#include "base/base.h"

/* A Markdown table, one line a row of ops.def, sorted by name. */
void ops_list_table(Text *to);
/* A JSON array of {"operator", "since", "until", "folds", "runs", "gradient", "remark"}; gradient is "yes", "zero",
 * "none" or null where the operator only folds, remark may be null. */
void ops_list_json(Text *to);
/* docs/operators.md. */
void ops_list_document(Text *to);

#endif
