-- The table of docs/records.md out of an OMOP store: one row a person, the same query at every hospital.
-- DATA of `pate-fed hospital check` and `join`; beside it omop.sql.url names the database (docs/records.md).
-- 3004249 systolic blood pressure, 3028437 LDL cholesterol, 4329847 myocardial infarction: put your study's here.
WITH last_value AS (
  SELECT person_id, measurement_concept_id AS concept, value_as_number AS value,
         ROW_NUMBER() OVER (PARTITION BY person_id, measurement_concept_id
                            ORDER BY measurement_date DESC) AS place
  FROM measurement
  WHERE measurement_concept_id IN (3004249, 3028437) AND measurement_date < '2025-01-01'
)
SELECT p.person_id AS patient,
       2025 - p.year_of_birth AS age,
       CASE p.gender_concept_id WHEN 8507 THEN 'm' WHEN 8532 THEN 'f' END AS sex,
       MAX(CASE WHEN v.concept = 3004249 THEN v.value END) AS systolic,
       MAX(CASE WHEN v.concept = 3028437 THEN v.value END) AS ldl,
       CASE WHEN EXISTS (SELECT 1 FROM condition_occurrence c
                         WHERE c.person_id = p.person_id AND c.condition_concept_id = 4329847
                           AND c.condition_start_date >= '2025-01-01')
            THEN 'infarction' ELSE 'none' END AS outcome
FROM person p LEFT JOIN last_value v ON v.person_id = p.person_id AND v.place = 1
GROUP BY p.person_id, p.year_of_birth, p.gender_concept_id
ORDER BY p.person_id;
