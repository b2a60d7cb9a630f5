/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_CUDA_IPC_H
#define PIER_BACKENDS_CUDA_IPC_H

#include "memory.h"

/* The functions of struct pier_backend of these names. */
int pier_cuda_ipc_export(const struct pier_memory *memory,
			 struct pier_backend_ipc *ret_ipc);
int pier_cuda_ipc_open(const struct pier_backend_ipc *ipc, const struct pier_memory *from,
		       struct pier_memory *ret_memory);

/* Memory that pier_cuda_ipc_open() opened. Does not free the description. */
void pier_cuda_ipc_close(struct pier_cuda_memory *memory);

#endif
