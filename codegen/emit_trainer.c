/* emit_trainer.c - trainer.c and the Makefile. */
#include "codegen/codegen.h"

#include <errno.h>
#include <string.h>

#include "trainer_template.h" /* codegen/templates/trainer.c as a string, made by CMake */

Status emit_trainer_c(Emitter *e)
{
    static const char mark[] = "/*@inputs@*/\n";
    const char *at = strstr(TRAINER_TEMPLATE, mark);
    if (!at)
        return diag_fail(e->diag, ST_FAILED, "codegen: the trainer's template has no place for the inputs");
    text_add_bytes(&e->text, TRAINER_TEMPLATE, (size_t)(at - TRAINER_TEMPLATE));
    for (int i = 0; i < e->graph->n_input; i++)
        text_add(&e->text, "        in.%s = batch[%d];\n", e->names.input[i], i);
    text_add(&e->text, "%s", at + strlen(mark));
    return e->text.failed ? diag_oom(e->diag) : ST_OK;
}

Status emit_makefile(Emitter *e)
{
    const char *prefix = path_relative(e->arena, e->options->dir, e->options->prefix);
    if (!prefix && errno != ENOMEM)
        return diag_fail(e->diag, ST_FAILED, "%s: cannot find its place as seen from %s: %s", e->options->prefix,
                         e->options->dir, strerror(errno));
    if (!prefix)
        return diag_oom(e->diag);
    text_add(&e->text,
             "# Builds the trainer. FERRY is the folder with include/ferry/ferry.h and lib/libferry.a.\n"
             "FERRY ?= %s\n"
             "CFLAGS ?= -O2 -g\n"
             "override CFLAGS += -std=gnu17 -Wall -Wextra -Werror -ffp-contract=off -I$(FERRY)/include\n"
             "include $(FERRY)/lib/ferry.mk\n"
             "LDLIBS = $(FERRY)/lib/libferry.a $(FERRY_LIBS)\n\n"
             "trainer: trainer.o schedule.o $(FERRY)/lib/libferry.a\n"
             "\t$(CC) $(CFLAGS) $(LDFLAGS) -o $@ trainer.o schedule.o $(LDLIBS)\n\n"
             "trainer.o schedule.o: schedule.h $(FERRY)/include/ferry/ferry.h\n\n"
             "clean:\n"
             "\trm -f trainer trainer.o schedule.o\n"
             ".PHONY: clean\n",
             prefix);
    return e->text.failed ? diag_oom(e->diag) : ST_OK;
}
