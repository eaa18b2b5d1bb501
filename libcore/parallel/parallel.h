/* parallel: how a layout splits a model and a step over ranks, and how the parts are combined.
 *   tensor.h      the tensor table: shapes, initialization, slices
 *   slices.h      virtual slices: tensor and sequence parallelism
 *   context.h     virtual chunks: context parallelism
 *   dispatch.h    expert parallelism: rows of experts
 *   microbatch.h  micro-batches of the data-parallel ranks
 *   schedule.h    pipeline schedules as data
 *   store.h       the parameter store: replicated, sharded, offloaded
 *   bucket.h, offload.h, schedule_internal.h, store_internal.h  for the files of this floor only */
#pragma once

#include "parallel/context.h"
#include "parallel/microbatch.h"
#include "schedule/schedule.h"
#include "parallel/slices.h"
#include "parallel/store.h"
#include "parallel/tensor.h"
