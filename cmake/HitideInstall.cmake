# What `cmake --install` puts where, below the prefix:
#
#   bin/hitide                   the program
#   lib/libhitide.a              all layers below the engine: the target hitide::hitide
#   lib/cmake/hitide             the package that find_package(hitide) reads
#   include/hitide               public headers; conformance/ and support/: the suites
#   share/hitide/python          our Python package, which the program finds there
#   share/hitide/examples        a project of its own that uses all of this
#
# The package moves with its prefix. docs/engine_authors.md is for its users.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Header-only: nothing of them is left in the archive.
set(HITIDE_HEADER_ONLY nlohmann_json::nlohmann_json tsl::robin_map)

# hitide_library(layer...): the one archive of these layers, hitide::hitide.
function(hitide_library)
  add_library(hitide_library STATIC)
  add_library(hitide::hitide ALIAS hitide_library)
  set(libs)
  foreach(layer ${ARGN})
    get_target_property(type hitide_${layer} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      target_sources(hitide_library PRIVATE $<TARGET_OBJECTS:hitide_${layer}>)
    endif()
    get_property(layer_libs GLOBAL PROPERTY HITIDE_LIBS_${layer})
    list(APPEND libs ${layer_libs})
  endforeach()
  list(REMOVE_DUPLICATES libs)
  list(REMOVE_ITEM libs ${HITIDE_HEADER_ONLY})
  set_target_properties(hitide_library PROPERTIES OUTPUT_NAME hitide EXPORT_NAME hitide
                        LINKER_LANGUAGE CXX)
  target_compile_features(hitide_library PUBLIC cxx_std_20)
  target_link_libraries(hitide_library PRIVATE ${libs})
  target_include_directories(hitide_library
                             PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(HITIDE_SANITIZE STREQUAL "address")
    target_link_options(hitide_library INTERFACE -fsanitize=address,undefined)
  elseif(HITIDE_SANITIZE STREQUAL "thread")
    target_link_options(hitide_library INTERFACE -fsanitize=thread)
  endif()
  set_property(GLOBAL PROPERTY HITIDE_LIBRARY_LIBS ${libs})

  # The suites, under the names that they have when installed.
  set(suites ${PROJECT_BINARY_DIR}/suites)
  file(MAKE_DIRECTORY ${suites}/hitide)
  foreach(folder conformance support)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/tests/${folder} ${suites}/hitide/${folder} SYMBOLIC)
  endforeach()
  if(HITIDE_BUILD_TESTS)
    add_library(hitide_conformance INTERFACE)
    add_library(hitide::conformance ALIAS hitide_conformance)
    target_link_libraries(hitide_conformance INTERFACE hitide_library GTest::gtest)
    target_include_directories(hitide_conformance INTERFACE ${suites})
  endif()
endfunction()

# The lines of the package that find what the archive needs. Fails for a library that is not known
# here, so that no archive is installed that nobody can link.
function(hitide_dependency_lines out)
  get_property(libs GLOBAL PROPERTY HITIDE_LIBRARY_LIBS)
  set(lines "")
  foreach(lib ${libs})
    if(lib STREQUAL "Threads::Threads")
      string(APPEND lines "find_dependency(Threads)\n")
    elseif(lib STREQUAL "OpenSSL::Crypto")
      string(APPEND lines "find_dependency(OpenSSL COMPONENTS Crypto)\n")
    elseif(lib STREQUAL "fmt::fmt" OR lib STREQUAL "spdlog::spdlog")
      string(REGEX REPLACE "::.*" "" package ${lib})
      string(APPEND lines "find_dependency(${package})\n")
    elseif(lib STREQUAL "PkgConfig::xxhash")
      string(APPEND lines "hitide_pkg_config(xxhash libxxhash)\n")
    elseif(lib STREQUAL "PkgConfig::tomlplusplus")
      string(APPEND lines "hitide_pkg_config(tomlplusplus tomlplusplus)\n")
    elseif(lib STREQUAL "PkgConfig::yaml_cpp")
      string(APPEND lines "hitide_pkg_config(yaml_cpp yaml-cpp)\n")
    else()
      message(FATAL_ERROR "say in cmake/HitideInstall.cmake how ${lib} is found by those who link "
                          "the installed libhitide.a")
    endif()
  endforeach()
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()

function(hitide_install)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hitide)
  set(python_dir share/hitide/python)
  set(examples_dir share/hitide/examples)
  install(TARGETS hitide_library EXPORT hitideTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS hitide RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hitide DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/tests/conformance/object_store_suite.h
                ${PROJECT_SOURCE_DIR}/tests/conformance/store_kind.h
                ${PROJECT_SOURCE_DIR}/tests/conformance/device_suite.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hitide/conformance)
  install(FILES ${PROJECT_SOURCE_DIR}/tests/support/store_bytes.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hitide/support)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/hitide DESTINATION ${python_dir}
          FILES_MATCHING PATTERN "*.py")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${examples_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

  hitide_dependency_lines(HITIDE_FIND_DEPENDENCIES)
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/hitideConfig.cmake.in ${PROJECT_BINARY_DIR}/hitideConfig.cmake
    INSTALL_DESTINATION ${package_dir} PATH_VARS python_dir examples_dir)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/hitideConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/hitideConfig.cmake
                ${PROJECT_BINARY_DIR}/hitideConfigVersion.cmake
          DESTINATION ${package_dir})
  install(EXPORT hitideTargets NAMESPACE hitide:: DESTINATION ${package_dir})
endfunction()
