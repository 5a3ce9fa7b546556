/* onnx_cases.h - what the programs share that run the operator test data of the ONNX project: cases, children, lists.
 *
 *   PROGRAM DATA LIST              every case of DATA/node; LIST names the cases that are known not to pass
 *   PROGRAM --but SKIPPED ...      without the cases that the list SKIPPED names
 *   PROGRAM DATA LIST CASE...      these cases only, with what they say
 *   PROGRAM --list DATA LIST       prints a LIST made anew from what happens
 *   PROGRAM --share PERCENT ...    of the cases whose operators are all in ops.def, at least this share has to pass
 *   PROGRAM --covered FILE ...     writes the operators of the cases that pass, one a line
 *
 * A case is a folder with model.onnx and test_data_set_N/input_K.pb and output_K.pb, each a TensorProto. The program
 * fails when a case of LIST passes, when one that is not in it does not, and when LIST names a case that is not there.
 * Each case runs in a child with a time limit: a crash is its failure alone. */
#ifndef FERRY_TESTS_ONNX_CASES_H
#define FERRY_TESTS_ONNX_CASES_H

#include "graph/graph.h"

enum { CASE_TEXT = 600, CASE_PASSED = 0, CASE_FAILED = 1 };

/* One data set of a case, in the child: CASE_PASSED, or CASE_FAILED with the reason in why[CASE_TEXT]. */
typedef int CaseFunction(Arena *a, const char *model_path, const char *set, char *why);

/* The whole program; returns its exit status. */
int cases_main(int argc, char **argv, CaseFunction *run);

/* Writes the reason and returns CASE_FAILED. */
int case_say(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The TensorProto in a file; its data lies in the arena of m. */
Status case_tensor(Diag *d, Model *m, const char *path, Value *out);
/* The inputs of a data set by the names of the model (feed has room for all of them). */
int case_inputs(Arena *a, const Model *m, const char *set, ferry_tensor *feed, int *n_feed, char *why);
/* The data has numbers of type bf16 as u16 with the same bits. */
ferry_dtype case_bits_type(const Value *v, ferry_dtype wanted);

#endif
