/*-------------------------------------------------------------------------
 *
 * tenant.c
 *	  Whose a job is: its tenant, as its queue says.
 *
 * It is read from what the job itself has, its headers, its context, its role,
 * each time its row is written, and stands there in the column "tenant".  So it
 * does not depend on who writes the row, and follows a change of the queue.
 *
 * src/store/tenant.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/varlena.h"

#include "store/store.h"

static char *text_of_key(const JobqJob *job, int att, const char *key);
static char *first_schema(char *path);

/*
 * Read what a queue says: setting NAME, header NAME, schema, or role.  False if it
 * is none of these.  name has room for JOBQ_MAX_TENANT_NAME bytes and the end.
 */
bool
jobq_tenant_parse(const char *text, char *by, char *name)
{
	static const struct
	{
		const char *word;
		char		by;
		bool		named;
	}			words[] = {
		{"setting", TENANT_BY_SETTING, true},
		{"header", TENANT_BY_HEADER, true},
		{"schema", TENANT_BY_SCHEMA, false},
		{"role", TENANT_BY_ROLE, false},
	};
	size_t		length = strcspn(text, " ");

	for (int i = 0; i < (int) lengthof(words); i++)
	{
		const char *rest = text +length;

		if (strlen(words[i].word) != length ||
			strncmp(words[i].word, text, length) != 0)
			continue;
		rest += strspn(rest, " ");
		if (words[i].named ? *rest == '\0' || strlen(rest) > JOBQ_MAX_TENANT_NAME
			: text[length] != '\0')
			return false;
		*by = words[i].by;
		strlcpy(name, rest, JOBQ_MAX_TENANT_NAME + 1);
		return true;
	}
	return false;
}

/*
 * The text or number that this column, an object, has for the key; or NULL.
 */
static char *
text_of_key(const JobqJob *job, int att, const char *key)
{
	JsonbValue	value;
	Jsonb	   *json;

	if (JOB_ISNULL(job, att))
		return NULL;
	json = DatumGetJsonbP(JOB(job, att));
	if (!JB_ROOT_IS_OBJECT(json) ||
		getKeyJsonValueFromContainer(&json->root, key, strlen(key),
									 &value) == NULL)
		return NULL;
	if (value.type == jbvString)
		return pnstrdup(value.val.string.val, value.val.string.len);
	if (value.type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out,
												   NumericGetDatum(value.val.numeric)));
	return NULL;
}

/*
 * The first schema of a search_path, but for "$user", and for those of the
 * system; or NULL.  Whether it exists does not matter.
 */
static char *
first_schema(char *path)
{
	List	   *names;
	ListCell   *lc;

	if (!SplitIdentifierString(path, ',', &names))
		return NULL;
	foreach(lc, names)
	{
		char	   *name = lfirst(lc);

		if (strcmp(name, "$user") != 0 && strncmp(name, "pg_", 3) != 0)
			return name;
	}
	return NULL;
}

/*
 * The job's tenant, in the current memory context; NULL if it has none, or its
 * queue knows no tenants.  queue may be NULL.
 */
char *
jobq_job_tenant(const JobqJob *job, const JobqQueue *queue)
{
	char	   *tenant = NULL;

	switch (queue == NULL ? TENANT_NONE : queue->tenant_by)
	{
		case TENANT_BY_SETTING:
			tenant = text_of_key(job, JOB_CONTEXT, queue->tenant_name);
			break;
		case TENANT_BY_HEADER:
			tenant = text_of_key(job, JOB_HEADERS, queue->tenant_name);
			break;
		case TENANT_BY_SCHEMA:
			tenant = text_of_key(job, JOB_CONTEXT, queue->tenant_name);
			if (tenant != NULL)
				tenant = first_schema(tenant);
			break;
		case TENANT_BY_ROLE:
			tenant = GetUserNameFromId(job_role(job), true);
			break;
	}
	if (tenant == NULL || tenant[0] == '\0')
		return NULL;
	tenant[pg_mbcliplen(tenant, strlen(tenant), JOBQ_MAX_TENANT)] = '\0';

	return tenant;
}

/*
 * The hash by which the lanes, the turns and the weights of a tenant are found;
 * never 0.  tenant may be NULL.
 */
uint32
jobq_tenant_hash(const char *tenant)
{
	uint32		hash = 2;		/* of those without a tenant */

	if (tenant != NULL)
		hash = hash_bytes((const unsigned char *) tenant, strlen(tenant));
	return hash == 0 ? 1 : hash;
}
