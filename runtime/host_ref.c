/* host_ref.c - the references of host_ref.inc for f32 and f64. */
#include "runtime/both.h"
#include "runtime/host.h"
#include "runtime/random.h"
#include "runtime/attention.h"

#include "runtime/window.h"

#include <math.h>
#include <stdlib.h>

#define T       float
#define F(name) name##_f32
#define M(name) name##f
#include "runtime/host_scalar.inc"
#include "runtime/host_index.inc"
#include "runtime/host_window_ref.inc"
#include "runtime/host_attention_ref.inc"
#include "runtime/host_ref.inc"
#undef T
#undef F
#undef M

#define T       double
#define F(name) name##_f64
#define M(name) name
#include "runtime/host_scalar.inc"
#include "runtime/host_index.inc"
#include "runtime/host_window_ref.inc"
#include "runtime/host_attention_ref.inc"
#include "runtime/host_ref.inc"
#undef T
#undef F
#undef M
