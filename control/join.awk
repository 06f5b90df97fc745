# Joins the parts of the install script, and repeats lines for each entry of
# the lists that the C code has in headers.
#
#	awk -f join.awk LIST.h ... PART.sql ... > SCRIPT.sql
#
# A list is a header with entries such as
#
#	JOB_OPTION(queue, QUEUE, text, "what it is")
#
# each on a line of its own.  In the parts, a line
#
#	--each JOB_OPTION:COMMENT ON COLUMN jobq.inbox.@1 IS '@'4';
#
# becomes a line for each entry, with the fields of the entry in place of @1, @2
# and so on; @'1 doubles the quotes in it, for use within a string literal.
#
#	--list JOB_OPTION:	@1 @3 DEFAULT NULL
#
# does the same, and puts a comma after all but the last.

function fields_of(line, list,	n, at, c, quoted, escaped) {
	sub(/^[^(]*\(/, "", line)
	n = 1
	fields[list, count[list], 1] = ""
	for (at = 1; at <= length(line); at++) {
		c = substr(line, at, 1)
		if (quoted && c == "\\" && !escaped) {
			escaped = 1
			continue
		}
		if (c == "\"" && !escaped)
			quoted = !quoted
		else if (!quoted && c == ")")
			break
		else if (!quoted && c == ",")
			fields[list, count[list], ++n] = ""
		else if (quoted || c !~ /[ \t]/)
			fields[list, count[list], n] = fields[list, count[list], n] c
		escaped = 0
	}
	nfields[list] = n
}

# Replaces @n, and @'n where the field stands within a string literal.
function filled(template, list, entry,	result, at, n, value, literal) {
	while (match(template, /@'?[0-9]/)) {
		literal = RLENGTH == 3
		n = substr(template, RSTART + RLENGTH - 1, 1)
		if (n > nfields[list])
			fail("there is no field " n " in " list)
		value = fields[list, entry, n]
		if (literal)
			gsub(/'/, "''", value)
		result = result substr(template, 1, RSTART - 1) value
		template = substr(template, RSTART + RLENGTH)
	}
	return result template
}

function fail(message) {
	print FILENAME ":" FNR ": " message > "/dev/stderr"
	exit 1
}

FILENAME ~ /\.h$/ {
	if (match($0, /^[A-Z_]+\(/)) {
		list = substr($0, 1, RLENGTH - 1)
		count[list]++
		fields_of($0, list)
	}
	next
}

/^--(each|list) / {
	list = substr($0, 8, index($0, ":") - 8)
	template = substr($0, index($0, ":") + 1)
	if (!(list in count))
		fail("there is no list " list)
	for (entry = 1; entry <= count[list]; entry++)
		print filled(template, list, entry) (/^--list/ && entry < count[list] ? "," : "")
	next
}

{ print }
