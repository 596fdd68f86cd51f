package io.github.eskerstorage.ring;

import io.github.eskerstorage.ring.Instance.Address;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;

/** What stood in the registry at one time. Does not change. */
final class Table {
    static final Table EMPTY = new Table(List.of());

    private final NavigableMap<Long, List<Address>> byMark = new TreeMap<>(Long::compareUnsigned);
    private final List<String> strange = new ArrayList<>();

    /** From the names of the nodes. */
    Table(Collection<String> names) {
        for (String name : new TreeSet<>(names)) {
            Optional<Instance> parsed = Instance.parse(name).filter(of -> of.protocol().equals(Instance.PROTOCOL));
            parsed.ifPresentOrElse(
                instance -> byMark.computeIfAbsent(instance.mark(), mark -> new ArrayList<>()).add(instance.address()),
                () -> strange.add(name));
        }
    }

    /** Nodes that are no instances that a ring can call. */
    List<String> strange() {
        return List.copyOf(strange);
    }

    /** The servers of the first mark behind a place; behind the last mark the ring begins anew. */
    List<Address> keepersOf(long place) {
        Map.Entry<Long, List<Address>> found = byMark.higherEntry(place);
        found = found == null ? byMark.firstEntry() : found;
        return found == null ? List.of() : List.copyOf(found.getValue());
    }

    /** All servers, those that keep a place first, each once: any of them answers. */
    List<Address> orderFor(long place) {
        LinkedHashSet<Address> order = new LinkedHashSet<>(keepersOf(place));
        byMark.tailMap(place, false).values().forEach(order::addAll);
        byMark.values().forEach(order::addAll);
        return new ArrayList<>(order);
    }

    boolean has(Address server) {
        return byMark.values().stream().anyMatch(servers -> servers.contains(server));
    }
}
