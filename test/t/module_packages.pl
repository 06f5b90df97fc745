# The packages of the libraries have the version of the extension, name files that exist, and can
# be installed.

use strict;
use warnings FATAL => 'all';
use Cwd qw(abs_path);
use FindBin;

use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $tree = "$FindBin::RealBin/../..";
my $folder = PostgreSQL::Test::Utils::tempdir();
my ($version) = slurp_file("$tree/control/jobq.control") =~ /^default_version = '(.*)'/m;

sub runs
{
	return eval { IPC::Run::run([@_], '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) };
}

sub package_of { return decode_json(slurp_file("$tree/libraries/$_[0]")); }

# Python
my $project = slurp_file("$tree/libraries/python/pyproject.toml");
my ($python) = $project =~ /^version = "(.*)"/m;
is($python, $version, 'the version of the package for Python');
SKIP:
{
	my @python = ('/usr/bin/python3', '-m', 'pip');

	skip 'pip with setuptools is not installed', 2
	  unless runs(@python, '--version') &&
	  runs('/usr/bin/python3', '-c', 'import setuptools as s; exit(int(s.__version__.split(".")[0]) < 61)');
	# pip writes into the folder of the source
	system('cp', '-r', "$tree/libraries/python", "$folder/source");
	command_ok(
		[ @python, 'install', '--quiet', '--no-index', '--no-build-isolation', '--no-deps', '--target', "$folder/python", "$folder/source" ],
		'pip installs the package');
	my ($out) = run_command([ 'env', "PYTHONPATH=$folder/python", '/usr/bin/python3', '-c', <<'END' ]);
from importlib.metadata import distribution
package = distribution("jobq")
print(package.version, *sorted(file.name for file in package.files if file.suffix == ".py"))
END
	is($out, "$version jobq.py", 'the package has the library, and no example');
}

# PHP
foreach my $library ('php', 'laravel')
{
	my $package = package_of("$library/composer.json");
	my @files = map { @{ $package->{autoload}{$_} } } keys %{ $package->{autoload} };

	is($package->{version}, $version, "the version of the package $library");
	is(scalar(grep { -f "$tree/libraries/$library/$_" } @files), 1, "$library: the loaded file exists");
	my $source = slurp_file("$tree/libraries/$library/$files[0]");
	foreach my $provider (@{ $package->{extra}{laravel}{providers} || [] })
	{
		my ($namespace, $class) = $provider =~ /^(.*)\\(\w+)$/;
		like($source, qr/^namespace \Q$namespace\E;.*^class $class extends ServiceProvider$/ms, "$library: the discovered provider exists");
	}
	# a class map finds classes, and nothing else
	unlike($source, qr/^(function|const) /m, "$library: the file has only classes") if $package->{autoload}{classmap};
}
ok(package_of('laravel/composer.json')->{extra}{laravel}{providers}, 'Laravel discovers the provider');

my $package = package_of('node/package.json');
is($package->{version}, $version, 'the version of the package for Node');
is(join(' ', grep { !-f "$tree/libraries/node/$_" } $package->{main}, $package->{types}, @{ $package->{files} }),
	'', 'node: the files exist');
SKIP:
{
	skip 'tsc or the types of pg are not installed', 1
	  unless runs('tsc', '--version') && runs('node', '-e', 'require.resolve("@types/pg/package.json")');
	my ($types) = run_command([ 'node', '-p', 'require("path").resolve(require.resolve("@types/pg/package.json"), "../../..")' ]);

	mkdir "$folder/node_modules";
	symlink(abs_path("$tree/libraries/node"), "$folder/node_modules/jobq");
	symlink("$types/\@types", "$folder/node_modules/\@types");
	system('cp', "$tree/test/consumers/types.ts", $folder);
	command_ok(
		[ 'tsc', '--noEmit', '--strict', '--skipLibCheck', '--preserveSymlinks', '--target', 'es2022', '--module', 'node16', "$folder/types.ts" ],
		'the types of the library for Node');
}
# the names in types and library are the same
SKIP:
{
	skip 'Node with pg is not installed', 1 unless runs('node', '-e', 'require("pg")');
	my ($names) = run_command([ 'node', '-p', "Object.keys(require('$tree/libraries/node/jobq.js')).sort().join(' ')" ]);
	my @typed = slurp_file("$tree/libraries/node/index.d.ts") =~ /^export (?:class|function) (\w+)/mg;
	is(join(' ', sort @typed), $names, 'each exported name has a type');
}
my ($options) = slurp_file("$tree/libraries/node/index.d.ts") =~ /^export interface Options \{(.*?)^\}/ms;
is(join(' ', $options =~ /^\t(\w+)\?:/mg), join(' ', slurp_file("$tree/src/produce/options.h") =~ /^JOB_OPTION\((\w+)/mg),
	'each option of a job has a type');

# C
my ($lib) = run_command([ 'pg_config', '--libdir' ]);
$ENV{PKG_CONFIG_PATH} = "$lib/pkgconfig";
SKIP:
{
	skip 'pkg-config is not installed', 2 unless runs('pkg-config', '--version');
	my ($found) = run_command([ 'pkg-config', '--modversion', 'jobq' ]);
	is($found, $version, 'the version for pkg-config');
	my ($flags) = run_command([ 'pkg-config', '--cflags', '--libs', 'jobq' ]);
	my ($cflags) = run_command([ 'pg_config', '--cflags' ]);
	command_ok([ 'cc', '-o', "$folder/example", "$tree/libraries/c/example.c", split(' ', $flags), grep { /^-fsanitize=/ } split ' ', $cflags ],
		'a program in C is linked with the installed library');
}

done_testing();
