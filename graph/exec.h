/* exec.h - running a forward graph once on the host backend. */
#ifndef FERRY_GRAPH_EXEC_H
#define FERRY_GRAPH_EXEC_H

#include "graph/graph.h"

/* Runs the nodes of a graph made by forward_from_options in order, on a host device of its own. Each tensor has heap
 * memory from its first write to its last use. out[0..g->n_output) are the outputs in the model's types, data in the
 * arena; an output may be an input, a constant or another output as well. ST_MODEL: a kernel refuses what it reads (an
 * index out of range, weights whose file is missing). ST_FAILED: memory, the device. */
Status graph_execute(Diag *d, Arena *a, const Graph *g, ferry_tensor *out);

#endif
