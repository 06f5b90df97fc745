SELECT count(jobq.enqueue('demo.invoice', jsonb_build_object('maker', maker))) AS jobs
FROM (SELECT maker FROM demo.assignment GROUP BY maker ORDER BY count(*) DESC, maker LIMIT 500) AS largest;
