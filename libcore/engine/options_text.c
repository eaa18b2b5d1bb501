/* The options as text: those saved, those that determine bits; a model from a config. */
#include "engine/engine.h"
#include "engine/options.h"

void options_print_saved(const struct train_opts *o, struct str *out)
{
	opts_print(&train_program, o, OPT_RUN, 0, out);
}

void options_print_result_options(const struct train_opts *o, int device, struct str *out)
{
	struct train_opts copy = *o;
	if (device == DEVICE_CPU)
		copy.kernels = KERNELS_FUSED;
	opts_print(&train_program, &copy, OPT_ARITH, 0, out);
}

void options_arithmetic(const struct train_opts *o, const struct model *m,
	const char *device, uint64_t data_hash, struct str *out)
{
	struct train_opts copy = *o;
	char degrees[48];
	snprintf(degrees, sizeof(degrees), "tp=%d,cp=%d", m->tp, m->cp);
	copy.model.virtual_degrees = degrees;
	options_print_result_options(&copy, o->device, out);
	str_printf(out, "data = 0x%016llx\n", (unsigned long long)data_hash);
	str_printf(out, "parameters = %lld\n", (long long)model_counts(m).all);
	conf_print(out, "matmuls", device);
	str_printf(out, "sums = grid-%d\n", GRID_EXPONENT);
	str_printf(out, "order = %d\n", PASS_VERSION);
	str_printf(out, "initial-weights = %d\n", INIT_VERSION);
	str_printf(out, "program = %s\n", PT_VERSION);
}

int options_model(struct model_config *m, const char *config, struct err *e)
{
	struct train_opts o;
	if (opts_from_text(&train_program, &o, config, true, e))
		return -1;
	*m = o.model;
	return 0;
}
