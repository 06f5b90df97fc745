<?php
// Runs the steps of test/t/produce_libraries.pl with the library for PHP, and prints a line for
// each.
require __DIR__ . '/../../libraries/php/Jobq.php';

$db = new PDO('pgsql:', null, null, [PDO::ATTR_EMULATE_PREPARES => (bool) getenv('EMULATE'),
	PDO::ATTR_ERRMODE => getenv('EMULATE') ? PDO::ERRMODE_SILENT : PDO::ERRMODE_EXCEPTION]);
$shown = fn ($status) => "$status->state $status->attempt " . json_encode($status->result);
// in SQL, without the library, no parameter needs a cast
$untyped = 'SELECT jobq.enqueue(?, ?, queue => ?, priority => ?, delay => ?, max_attempts => ?, tags => ?, uniqueness => ?,
	unique_key => ?, headers => ?, options => ?)';
$db->beginTransaction();
foreach (array_slice($argv, 1) as $step) {
	$values = explode("\t", $step);
	$name = array_shift($values);
	$options = json_decode($values[2] ?? '{}', true);
	try {
		echo match ($name) {
			'enqueue' => Jobq\enqueue($db, $values[0], json_decode($values[1]), ...$options) . "\n",
			'many' => implode(' ', Jobq\enqueue_many($db, $values[0], json_decode($values[1]), ...$options)) . "\n",
			'native' => Jobq\enqueue($db, $values[0], queue: 'mail', run_at: new DateTime('2040-01-02T03:04:05Z'), timeout: new DateInterval('PT2M'),
				tags: ['a', 'b'], unique_key: 'native', uniqueness: ['for' => 90],
				options: ['uuid' => $values[1]]) . "\n",
			'untyped' => $db->prepare($untyped)->execute($values) ? "done\n" : throw new Exception('untyped'),
			'status' => $shown(Jobq\status($db, $values[0])) . "\n",
			'wait' => $shown(Jobq\wait($db, (int) $values[0], (float) $values[1])) . "\n",
			'commit' => $db->commit() && $db->beginTransaction() ? '' : 'no commit',
			'rollback' => $db->rollBack() && $db->beginTransaction() ? '' : 'no rollback',
		};
	} catch (PDOException $error) {
		echo 'error ', $error->errorInfo[0], "\n";
		$db->rollBack();
		$db->beginTransaction();
	}
}
$db->commit();
