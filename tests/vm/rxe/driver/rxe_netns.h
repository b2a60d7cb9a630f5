/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Network namespaces.
 */

#ifndef RXE_NETNS_H
#define RXE_NETNS_H

struct ib_udata;
struct net;
struct net_device;
struct rxe_dev;

int rxe_netns_init(void);
void rxe_netns_exit(void);
int rxe_netns_listen(struct net_device *ndev);
struct net *rxe_netns_get(struct rxe_dev *rxe);
struct net *rxe_netns_from_udata(struct ib_udata *udata);

#endif /* RXE_NETNS_H */
