use super::*;

fn input(name: &str, bytes: usize, features: &[u32]) -> Input {
    Input { path: name.into(), bytes, features: features.to_vec() }
}

#[test]
fn a_control_file_says_what_each_input_reaches_and_a_crash_nothing() {
    let control = "\
3
1
a/seed
b/crash
b/other name
STARTED 0 5
FT 0 1 2 30
COV 0 7
STARTED 1 6
STARTED 2 7
FT 2
COV 2
";
    let expected = vec![input("a/seed", 5, &[1, 2, 30]), input("b/crash", 6, &[]), input("b/other name", 7, &[])];
    assert_eq!(parse(control), Some(expected));
    assert_eq!(parse("2\n0\na\n"), None);
}

#[test]
fn what_adds_most_comes_first_and_what_adds_nothing_goes() {
    let written = [input("seed", 1, &[1, 2])];
    let found = [
        input("nothing new", 1, &[1, 2]),
        input("two", 9, &[3, 4]),
        input("two and smaller", 8, &[4, 3]),
        input("three", 900, &[3, 5, 6]),
        input("one", 5, &[7]),
    ];
    let chosen = choose(&written, &found);
    let names: Vec<_> = chosen.iter().map(|input| input.path.to_str().unwrap()).collect();
    assert_eq!(names, ["three", "one", "two and smaller"]);
}

#[test]
fn what_is_checked_in_is_few_and_small() {
    let large = input("large", MAX_FOUND_BYTES + 1, &[]);
    let half = input("half", MAX_FOUND_BYTES / 2 + 1, &[]);
    let small = input("small", 1, &[]);
    let mut chosen = vec![&large, &half, &half];
    chosen.extend([&small; 2 * MAX_FOUND]);
    let kept = within_bounds(&chosen);
    assert_eq!(kept.len(), MAX_FOUND);
    assert_eq!(kept[..2], [&half, &small]);
}

#[test]
fn seeds_that_people_wrote_stay_and_inputs_are_named_by_what_they_hold() {
    let directory = tempfile::tempdir().unwrap();
    let corpus = directory.path().join("corpus");
    let work = directory.path().join("work");
    fs::create_dir(&corpus).unwrap();
    fs::create_dir(&work).unwrap();
    fs::write(corpus.join("empty-object"), "{}").unwrap();
    fs::write(corpus.join("found-0000"), "old").unwrap();
    fs::write(corpus.join("0123456789".repeat(4)), "by hand").unwrap();
    fs::write(work.join("some"), "new").unwrap();
    let new = input(work.join("some").to_str().unwrap(), 3, &[1]);
    let named = read(&[&new], FOUND).unwrap();
    for _ in 0..2 {
        replace(&corpus, &named, is_found).unwrap();
        let names = fs::read_dir(&corpus).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["empty-object", "found-11507a0e2f5e69d5"]);
    }
}

#[test]
fn an_input_can_move_from_one_directory_to_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let [corpus, work] = ["corpus", "work"].map(|name| directory.path().join(name));
    fs::create_dir(&corpus).unwrap();
    fs::create_dir(&work).unwrap();
    fs::write(corpus.join("found-1"), "worse").unwrap();
    fs::write(work.join("2"), "better").unwrap();
    let worse = input(corpus.join("found-1").to_str().unwrap(), 5, &[1]);
    let better = input(work.join("2").to_str().unwrap(), 6, &[1, 2]);
    exchange((&corpus, &[&better]), (&work, &[&worse])).unwrap();
    let text = |directory: &Path| {
        let mut entries = fs::read_dir(directory).unwrap();
        let text = fs::read_to_string(entries.next().unwrap().unwrap().path()).unwrap();
        assert!(entries.next().is_none());
        text
    };
    assert_eq!((text(&corpus), text(&work)), ("better".into(), "worse".into()));
}
