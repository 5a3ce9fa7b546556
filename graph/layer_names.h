/* layer_names.h - names of layers and units that a person recognises. */
#ifndef FERRY_GRAPH_LAYER_NAMES_H
#define FERRY_GRAPH_LAYER_NAMES_H

#include "graph/graph.h"

/* needs: layers and units without names   fills: Layer.name, Unit.name, each unique among its kind */
Status graph_name_layers(Diag *d, Graph *g);

#endif
