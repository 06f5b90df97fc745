<?php
// Writes invoices, one at a time.  usage: worker.php; PGHOST ... give the database
require __DIR__ . '/billing.php';

$db = connect();
$handlers = ['invoice.write' => fn (Jobq\Job $job) => write_invoice($db, $job)];
(new Jobq\Consumer('pgsql:', ['invoices'], $handlers, lease: 5, stopTimeout: 5))->run();
