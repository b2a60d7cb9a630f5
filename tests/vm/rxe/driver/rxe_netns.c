// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Network namespaces.
 *
 * A rxe device works in the namespace of its netdev. What it has there, and
 * what keeps that alive or ends it in time:
 *
 * - The UDP sockets that receive for all rxe devices of a namespace. They are
 *   made with its first device and stay until the namespace ends or the module
 *   is unloaded. They do not keep the namespace: its end calls
 *   rxe_netns_net_exit(). Being the end of a subsystem, that comes after the
 *   end of all netdevs, each of which has waited for its rxe device.
 * - The sockets of user QPs, and the routes cached in them. The ucontext to
 *   which the QPs belong keeps the namespace. A netdev of a namespace that ends
 *   thus has no rxe device with a ucontext; the removal of one has to wait for
 *   its user, and all other namespaces that end would have to wait with it.
 * - The sockets of the kernel's QPs. These belong to clients that end with the
 *   device, and a device must not keep the namespace that is to end it. They
 *   are in init_net, and routes of other namespaces are not cached in them.
 */

#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <rdma/uverbs_ioctl.h>

#include "rxe.h"
#include "rxe_net.h"
#include "rxe_netns.h"

/**
 * struct rxe_netns - what rxe has in a network namespace
 * @lock: serialises the making of the sockets
 * @sk4: receives by IPv4, or NULL
 * @sk6: receives by IPv6, or NULL
 */
struct rxe_netns {
	struct mutex lock;
	struct socket *sk4;
	struct socket *sk6;
};

static unsigned int rxe_netns_id;

static int __net_init rxe_netns_net_init(struct net *net)
{
	struct rxe_netns *rn = net_generic(net, rxe_netns_id);

	mutex_init(&rn->lock);

	return 0;
}

static void __net_exit rxe_netns_net_exit(struct net *net)
{
	struct rxe_netns *rn = net_generic(net, rxe_netns_id);

	rxe_release_udp_tunnel(rn->sk6);
	rxe_release_udp_tunnel(rn->sk4);
	mutex_destroy(&rn->lock);
}

static struct pernet_operations rxe_netns_ops = {
	.init = rxe_netns_net_init,
	.exit = rxe_netns_net_exit,
	.id = &rxe_netns_id,
	.size = sizeof(struct rxe_netns),
};

int rxe_netns_init(void)
{
	return register_pernet_subsys(&rxe_netns_ops);
}

void rxe_netns_exit(void)
{
	unregister_pernet_subsys(&rxe_netns_ops);
}

static struct socket *rxe_netns_listen6(struct net *net)
{
	struct socket *sk = NULL;

	if (IS_ENABLED(CONFIG_IPV6))
		sk = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), true);

	if (PTR_ERR(sk) == -EAFNOSUPPORT) {
		pr_warn_once("IPv6 is not supported, can not create a UDPv6 socket\n");
		return NULL;
	}

	return sk;
}

static int rxe_netns_make_sockets(struct rxe_netns *rn, struct net *net)
{
	struct socket *sk4, *sk6;

	if (rn->sk4)
		return 0;

	sk4 = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), false);
	if (IS_ERR(sk4)) {
		pr_err("Failed to create IPv4 UDP tunnel\n");
		return PTR_ERR(sk4);
	}

	sk6 = rxe_netns_listen6(net);
	if (IS_ERR(sk6)) {
		pr_err("Failed to create IPv6 UDP tunnel\n");
		rxe_release_udp_tunnel(sk4);
		return PTR_ERR(sk6);
	}

	rn->sk4 = sk4;
	rn->sk6 = sk6;

	return 0;
}

/* NULL if the namespace is ending */
static struct net *rxe_netns_get_of_netdev(struct net_device *ndev)
{
	struct net *net;

	/* a netdev that changes its namespace waits for readers */
	rcu_read_lock();
	net = maybe_get_net(dev_net(ndev));
	rcu_read_unlock();

	return net;
}

/**
 * rxe_netns_listen - receive in the network namespace of a netdev
 * @ndev: the netdev for which a rxe device is about to be added
 *
 * Return: 0, also when its namespace has the sockets already, or an error.
 */
int rxe_netns_listen(struct net_device *ndev)
{
	struct rxe_netns *rn;
	struct net *net;
	int err;

	net = rxe_netns_get_of_netdev(ndev);
	if (!net)
		return -ENODEV;

	rn = net_generic(net, rxe_netns_id);
	mutex_lock(&rn->lock);
	err = rxe_netns_make_sockets(rn, net);
	mutex_unlock(&rn->lock);

	put_net(net);

	return err;
}

/**
 * rxe_netns_get - keep the network namespace of a rxe device
 * @rxe: the device
 *
 * Return: the namespace, to be released by put_net(), or NULL if it or the
 * device is going away.
 */
struct net *rxe_netns_get(struct rxe_dev *rxe)
{
	struct net_device *ndev;
	struct net *net;

	ndev = rxe_ib_device_get_netdev(&rxe->ib_dev);
	if (!ndev)
		return NULL;

	net = rxe_netns_get_of_netdev(ndev);
	dev_put(ndev);

	return net;
}

/**
 * rxe_netns_from_udata - the network namespace for the socket of a new QP
 * @udata: that of the call which creates the QP; NULL if the kernel does
 *
 * Return: the namespace, which outlives the QP.
 */
struct net *rxe_netns_from_udata(struct ib_udata *udata)
{
	struct rxe_ucontext *uc =
		rdma_udata_to_drv_context(udata, struct rxe_ucontext, ibuc);

	return uc ? uc->net : &init_net;
}
