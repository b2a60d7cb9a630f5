/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_GPU_H
#define PIER_TOOLS_DOCTOR_GPU_H

struct facts;

/*
 * Keep what only NVIDIA's management library (libnvidia-ml.so.1) knows of a GPU: the size
 * and the use of BAR1, and the MIG mode.
 *
 * gpu  its spec, under which they are kept
 * pci  its address
 */
void keep_nvml(struct facts *facts, const char *gpu, const char *pci);

#endif
