/* A small model on one rank: its store, a pass over all of it, and its memory. */
#pragma once

#include "model/pass.h"

enum { NET_BATCH = 2, NET_MICRO = 2, NET_CONTEXT = 64 };

/* One rank with all of the model. */
struct net {
	struct model m;
	struct mesh alone;
	struct device d;
	struct arena memory, micro, scratch;
	struct store *store;
	struct pass p;
	struct acts a;
	struct stage all;
};

/* Opens a model with weights that are a function of their names. */
void net_open(struct net *x, const struct model_config *m, enum device_kind kind,
	enum precision precision, enum dtype type);
void net_close(struct net *x);
/* Computes the gradients of NET_MICRO micro-batches of NET_BATCH sequences of at most NET_CONTEXT
 * tokens, the same for each call. Returns the mean loss, with the losses of routers. */
double net_step(struct net *x);
/* Returns the mean loss of the same micro-batches. */
double net_loss(struct net *x);
/* Returns the initial values of a tensor, which the caller frees. */
float *net_values(const struct tensor *t);
