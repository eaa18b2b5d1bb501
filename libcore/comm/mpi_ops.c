/* MPI's types and operations, and our own: 16- and 8-bit floats, unsigned minimum and maximum. */
#include "comm/mpi_internal.h"
#include "kernels/dtype_bits.h"

static MPI_Datatype types[N_COMM_TYPES];

/* Returns true for a 16- or 8-bit float, which MPI handles as that many contiguous bytes. */
static bool is_narrow(enum comm_type t)
{
	return comm_type_table[t].is_floating && comm_type_table[t].bytes < 4;
}

MPI_Datatype mpi_type(enum comm_type t)
{
	return types[t];
}

/* ---- unsigned integers ----------------------------------------------------------- */

/* MPICH compares unsigned integers as if they were signed (4.0.2: pmodels/mpich#6083; one type
 * again in 2025: #7507), so their minimum and maximum are user-defined operations. */
static MPI_Op unsigned_min, unsigned_max;

#define REDUCE_UNSIGNED(type)                                          \
	do {                                                           \
		const type *x = from;                                  \
		type *y = to;                                          \
		for (int64_t i = 0; i < n; i++)                        \
			y[i] = (x[i] > y[i]) == largest ? x[i] : y[i]; \
	} while (0)

/* Sets each of n unsigned integers in `to` to the maximum, or the minimum, of itself and `from`. */
static void reduce_unsigned(
	const void *from, void *to, int64_t n, MPI_Datatype t, bool largest)
{
	int size;
	mpi.Type_size(t, &size);
	if (size == 1)
		REDUCE_UNSIGNED(uint8_t);
	else if (size == 4)
		REDUCE_UNSIGNED(uint32_t);
	else
		REDUCE_UNSIGNED(uint64_t);
}

static void reduce_unsigned_min(void *from, void *to, MPI_Count *n, MPI_Datatype *t)
{
	reduce_unsigned(from, to, *n, *t, false);
}

static void reduce_unsigned_max(void *from, void *to, MPI_Count *n, MPI_Datatype *t)
{
	reduce_unsigned(from, to, *n, *t, true);
}

/* ---- 16- and 8-bit floats ---------------------------------------------------------- */

static MPI_Op narrow_op[N_COMM_OPS];

/* Returns the sum, product, minimum or maximum of two floats. The last two keep NaN. */
static inline float reduce_two(enum comm_op op, float a, float b)
{
	switch (op) {
	case COMM_SUM:
		return a + b;
	case COMM_PROD:
		return a * b;
	case COMM_MIN: /* NaN if one of them is */
		return a < b || a != a ? a : b;
	default:
		return a > b || a != a ? a : b;
	}
}

/* Expands to one loop per type and operation, so that both are constants in it. */
#define REDUCE(bits, type, op)                                                          \
	do {                                                                            \
		const bits *x = from;                                                   \
		bits *y = to;                                                           \
		for (int64_t i = 0; i < n; i++)                                         \
			y[i] = (bits)narrow_bits(reduce_two(op, widen_bits(x[i], type), \
							 widen_bits(y[i], type)),       \
				type);                                                  \
	} while (0)

/* Reduces n 8- or 16-bit floats of `from` into `to`: computes in fp32 and rounds each result. */
static inline void reduce_narrow(
	enum comm_op op, const void *from, void *to, int64_t n, MPI_Datatype t)
{
	if (t == mpi_type(COMM_F16))
		REDUCE(uint16_t, DT_F16, op);
	else if (t == mpi_type(COMM_BF16))
		REDUCE(uint16_t, DT_BF16, op);
	else if (t == mpi_type(COMM_E4M3))
		REDUCE(uint8_t, DT_E4M3, op);
	else
		REDUCE(uint8_t, DT_E5M2, op);
}

#define NARROW_OP(name, op)                                                   \
	static void name(void *from, void *to, MPI_Count *n, MPI_Datatype *t) \
	{                                                                     \
		reduce_narrow(op, from, to, *n, *t);                          \
	}
NARROW_OP(narrow_sum, COMM_SUM)
NARROW_OP(narrow_prod, COMM_PROD)
NARROW_OP(narrow_min, COMM_MIN)
NARROW_OP(narrow_max, COMM_MAX)
#undef NARROW_OP

/* ---- all ----------------------------------------------------------------------------- */

static MPI_Op ops[N_COMM_OPS][N_COMM_TYPES];

MPI_Op mpi_op(enum comm_op op, enum comm_type t)
{
	return ops[op][t];
}

/* Returns MPI's operation for a type, or our own where MPI has none or a wrong one. */
static MPI_Op choose_op(enum comm_op op, enum comm_type t)
{
	const struct comm_type_info *i = &comm_type_table[t];
	bool is_unsigned = !i->is_floating && !i->is_signed;
	const MPI_Op native[N_COMM_OPS] = {
		[COMM_SUM] = MPI_SUM,
		[COMM_PROD] = MPI_PROD,
		[COMM_MIN] = is_unsigned ? unsigned_min : MPI_MIN,
		[COMM_MAX] = is_unsigned ? unsigned_max : MPI_MAX,
	};
	return is_narrow(t) ? narrow_op[op] : native[op];
}

/* Sets types[], and creates the MPI types of 8- and 16-bit floats. Returns an MPI error code. */
static int create_types(void)
{
	const MPI_Datatype predefined[N_COMM_TYPES] = {
		[COMM_I8] = MPI_INT8_T,
		[COMM_U8] = MPI_UINT8_T,
		[COMM_I32] = MPI_INT32_T,
		[COMM_U32] = MPI_UINT32_T,
		[COMM_I64] = MPI_INT64_T,
		[COMM_U64] = MPI_UINT64_T,
		[COMM_F32] = MPI_FLOAT,
		[COMM_F64] = MPI_DOUBLE,
	};
	int rc = MPI_SUCCESS;
	for (int t = 0; t < N_COMM_TYPES && rc == MPI_SUCCESS; t++) {
		types[t] = predefined[t];
		if (!is_narrow((enum comm_type)t))
			continue;
		rc = mpi.Type_contiguous(comm_type_table[t].bytes, MPI_BYTE, &types[t]);
		if (rc == MPI_SUCCESS)
			rc = mpi.Type_commit(&types[t]);
	}
	return rc;
}

int mpi_ops_create(void)
{
	MPI_User_function_c *const functions[N_COMM_OPS] = {
		[COMM_SUM] = narrow_sum,
		[COMM_PROD] = narrow_prod,
		[COMM_MIN] = narrow_min,
		[COMM_MAX] = narrow_max,
	};
	int rc = create_types();
	if (rc == MPI_SUCCESS)
		rc = mpi.Op_create_c(reduce_unsigned_min, true, &unsigned_min);
	if (rc == MPI_SUCCESS)
		rc = mpi.Op_create_c(reduce_unsigned_max, true, &unsigned_max);
	for (int op = 0; op < N_COMM_OPS && rc == MPI_SUCCESS; op++)
		rc = mpi.Op_create_c(functions[op], true, &narrow_op[op]);
	for (int op = 0; op < N_COMM_OPS; op++)
		for (int t = 0; t < N_COMM_TYPES; t++)
			ops[op][t] = choose_op((enum comm_op)op, (enum comm_type)t);
	return rc;
}

void mpi_ops_free(void)
{
	mpi.Op_free(&unsigned_min);
	mpi.Op_free(&unsigned_max);
	for (int op = 0; op < N_COMM_OPS; op++)
		mpi.Op_free(&narrow_op[op]);
	for (int t = 0; t < N_COMM_TYPES; t++)
		if (is_narrow((enum comm_type)t))
			mpi.Type_free(&types[t]);
}
