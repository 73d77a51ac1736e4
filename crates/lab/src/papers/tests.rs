use super::*;

#[test]
fn verdict_is_of_all_claims() {
    let claim = |holds| Claim { paper: "", ours: String::new(), holds };
    let verdict =
        |all: &[Option<bool>]| Verdict::of(&all.iter().map(|holds| claim(*holds)).collect::<Vec<_>>());
    assert_eq!(verdict(&[Some(true), Some(true)]), Verdict::Holds);
    assert_eq!(verdict(&[Some(true), Some(false)]), Verdict::HoldsInPart);
    assert_eq!(verdict(&[Some(false)]), Verdict::DoesNotHold);
    assert_eq!(verdict(&[Some(true), None]), Verdict::NotDecided);
    assert_eq!(verdict(&[]), Verdict::NotDecided);
}

fn measured(sweep: &str, system: &str, servers: u8, x: f64, repeat: u32, values: &[(&str, f64)]) -> Point {
    let parameters = Parameters {
        sweep: sweep.to_owned(),
        system: system.to_owned(),
        servers,
        x,
        repeat,
        seed: 1,
        warmup_seconds: 1.0,
        seconds: 5.0,
    };
    Point {
        experiment: "dpr".to_owned(),
        parameters,
        at: "2026-01-31 12:00".to_owned(),
        commit: "abc".to_owned(),
        kernel: "6.18".to_owned(),
        values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        requests: 1_000,
        failed: 0,
        idle: 0.5,
        others: 0.0,
        generator: 0.2,
        excluded: None,
    }
}

#[test]
fn repeats_have_their_median_and_what_does_not_count_is_left_out() {
    let rate = |repeat, value| measured("rate", "a", 1, 10.0, repeat, &[("v", value)]);
    let mut points = [rate(0, 5.0), rate(1, 9.0), rate(2, 6.0), rate(3, 99.0)];
    points[3].excluded = Some("busy".to_owned());
    let lines = lines_of(&points.iter().collect::<Vec<_>>(), "v");
    let found = LinePoint { x: 10.0, least: 5.0, median: 6.0, greatest: 9.0, counts: true };
    assert_eq!(lines, [Line { name: "a".to_owned(), points: vec![found] }]);
    let alone = lines_of(&[&points[3]], "v");
    assert_eq!(alone[0].points[0], LinePoint { counts: false, ..LinePoint::single(10.0, 99.0) });
    assert_eq!((alone[0].peak(), alone[0].at(10.0)), (None, None));
}

/// Some points of a figure need longer than others; a short look at one is replaced by a long one.
#[test]
fn longest_points_of_each_place_are_drawn() {
    let point = |x, seconds| {
        let point = measured("patterns", "a", 2, x, 0, &[]);
        Point { parameters: Parameters { seconds, ..point.parameters }, ..point }
    };
    let points = [point(1.0, 5.0), point(1.0, 10.0), point(3.0, 60.0), point(3.0, 5.0)];
    let drawn = report::longest(&points.iter().collect::<Vec<_>>());
    assert_eq!(drawn, [&points[1], &points[2]]);
    // another system has a short look alone so far
    let mut other = point(3.0, 5.0);
    other.parameters.system = "b".to_owned();
    let with_other = [&points[2], &points[3], &other];
    assert_eq!(report::longest(&with_other), [&points[3], &other]);
}

/// Returns points of figure 5: `every_host` and `central` are parts of the ideal.
fn saturated(every_host: [f64; 5], central: [f64; 5]) -> Vec<Point> {
    let point = |system: &str, servers: u8, megabits: f64| {
        [60.0, 80.0].map(|x| measured("users", system, servers, x, 0, &[("megabits", megabits)]))
    };
    let mut points = point("one host", 1, 30.0).to_vec();
    for servers in 1..=5 {
        let ideal = 30.0 * f64::from(servers);
        let place = usize::from(servers) - 1;
        points.extend(point(&format!("every host, {servers}"), servers, ideal * every_host[place]));
        points.extend(point(&format!("centralised, {servers}"), servers, ideal * central[place]));
    }
    points
}

#[test]
fn scalability_is_judged_as_in_paper() {
    let figure = &dpr::EXPERIMENT.figures[3];
    let verdict = |points: &[Point]| Verdict::of(&(figure.claims)(&points.iter().collect::<Vec<_>>()));
    let paper = saturated([1.0, 0.99, 0.98, 0.97, 0.97], [1.0, 0.99, 0.98, 0.94, 0.86]);
    assert_eq!(verdict(&paper), Verdict::Holds);
    let no_bottleneck = saturated([1.0; 5], [1.0; 5]);
    assert_eq!(verdict(&no_bottleneck), Verdict::HoldsInPart);
    let slow = saturated([1.0, 0.9, 0.8, 0.8, 0.8], [1.0; 5]);
    assert_eq!(verdict(&slow), Verdict::DoesNotHold);
    let mut missing = paper;
    missing.retain(|point| point.parameters.system != "centralised, 5");
    assert_eq!(verdict(&missing), Verdict::NotDecided);
}

#[test]
fn plans_name_systems_and_have_no_point_twice() {
    for experiment in EXPERIMENTS {
        for extent in [Extent::Quick, Extent::Normal, Extent::Full] {
            let points = (experiment.plan)(extent);
            for (number, point) in points.iter().enumerate() {
                assert!(!points[..number].contains(point), "{}: {point:?}", experiment.name);
                assert!(experiment.figures.iter().any(|figure| figure.sweep == point.sweep), "{point:?}");
            }
        }
    }
}

/// Without the number of servers, points that are left of several farms would be measured on one.
#[test]
fn farms_of_other_sizes_are_other_systems() {
    let point = |servers, x| measured("servers", "straight", servers, x, 0, &[]).parameters;
    assert!(!point(11, 11.0).has_system_of(&point(14, 14.0)));
    assert!(point(11, 1.0).has_system_of(&point(11, 2.0)));
}
