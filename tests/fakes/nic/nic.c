/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "parts.h"

struct fake_nic fake;

bool fake_fails(void)
{
	errno = ENOSPC;
	return ++fake.calls == fake.fail_call;
}

static int query_port(struct ibv_context *context, uint8_t port,
		      struct ibv_port_attr *ret_attr)
{
	(void)context;
	if (fake_fails())
		return ENOSPC;
	*ret_attr = fake.port;
	if (fake.ports_down & UINT64_C(1) << port)
		ret_attr->state = IBV_PORT_DOWN;
	return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	(void)context, (void)port;
	if (fake_fails())
		return ENOSPC;
	if (index >= FAKE_GIDS) {
		if (!fake.gid_beyond || index != 256)
			return ENODATA;
		/* A GID of an IPv4 address. */
		*ret_entry = (struct ibv_gid_entry){
			.gid.raw = { [10] = 0xff, [11] = 0xff, [12] = 10 },
			.gid_index = index,
			.gid_type = IBV_GID_TYPE_ROCE_V2,
		};
		return 0;
	}
	if (fake.gids[index].gid.raw[0] == 0 && fake.gids[index].gid.raw[15] == 0)
		return ENODATA;
	*ret_entry = fake.gids[index];
	ret_entry->gid_index = index;
	return 0;
}

static const struct pier_provider *provider_of_all_parts(void)
{
	static struct pier_provider provider;

	provider = (struct pier_provider){ .name = "fake",
					   .query_port = query_port,
					   .query_gid = query_gid };
	fake_add_memory(&provider);
	fake_add_completions(&provider);
	fake_add_queue_pairs(&provider);
	fake_add_requests(&provider);
	fake_add_device_events(&provider);
	return &provider;
}

struct pier_pd *fake_reset(void)
{
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(fake.device.gids[i].gids);
	memset(&fake, 0, sizeof(fake));
	fake.fail_result = ENOSPC;
	fake.context.async_fd = -1;
	fake.receiver = FAKE_QPN;
	fake.context.num_comp_vectors = 3;
	fake.port = (struct ibv_port_attr){
		.state = IBV_PORT_ACTIVE,
		.active_mtu = IBV_MTU_2048,
		.gid_tbl_len = FAKE_GIDS,
		.max_msg_sz = UINT32_C(1) << 30,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	fake.gids[1].gid.raw[0] = 0xfd;
	fake.gids[1].gid_type = IBV_GID_TYPE_ROCE_V2;
	fake.device = (struct pier_device){
		.provider = provider_of_all_parts(),
		.context = &fake.context,
		.limits = { .max_mr_size = UINT64_MAX,
			    .max_qp_wr = 100,
			    .max_sge = 8,
			    .max_sge_rd = 4,
			    .max_cqe = 128,
			    .max_srq = 4,
			    .max_srq_wr = 64,
			    .max_srq_sge = 4,
			    .phys_port_cnt = 2,
			    .max_qp_rd_atom = 8,
			    .max_qp_init_rd_atom = 6 },
		.name = "fake0",
	};
	snprintf(fake.verbs_device.name, sizeof(fake.verbs_device.name), "fake0");
	fake.context.device = &fake.verbs_device;
	fake.verbs_pd.context = &fake.context;
	fake.pd.device = &fake.device;
	fake.pd.pd = &fake.verbs_pd;
	pthread_mutex_init(&fake.device.events_lock, NULL);
	pthread_mutex_init(&fake.device.gids_lock, NULL);
	pthread_mutex_init(&fake.pd.lock, NULL);
	pier_list_init(&fake.pd.users);
	return &fake.pd;
}
